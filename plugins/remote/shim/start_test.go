// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestMain(m *testing.M) {
	testsupport.BeginRoles()
	supervisor.Main()
	os.Exit(testsupport.EndRoles(m.Run()))
}

// script is a driver that runs the script in the task's configuration.
type script struct{}

type scriptConfig struct {
	Text string `codec:"text" required:"true" doc:"A script of sh."`
	core.TaskOptions
}

func (script) Command(_ context.Context, r core.Request[scriptConfig]) (*task.Command, error) {
	return r.Run("/bin/sh", "-c", r.Config.Text), nil
}

// newShim returns a shim whose directory is dir.
func newShim(t *testing.T, dir string) *host {
	t.Helper()
	logger := hclog.NewNullLogger()
	d := core.New(t.Context(), logger, core.Plugin[core.PluginOptions, scriptConfig]{
		Name: Name, Summary: "runs scripts",
		New: func(core.PluginOptions, hclog.Logger) (core.Instance[scriptConfig], error) { return script{}, nil },
	})
	h := newHost(d, Options{Dir: dir}, logger)
	must.NoError(t, h.configure(Options{Dir: dir}))
	return h
}

// interrupted starts a task that runs "sleep mark". The connection ends before the start is recorded. interrupted
// returns the host of the next connection, and a function that claims the run there and returns the task's
// configuration.
func interrupted(t *testing.T, dir, mark string) (next *host, claims func(id string) *drivers.TaskConfig) {
	t.Helper()
	starts := filepath.Join(dir, "starts")
	claims = func(id string) *drivers.TaskConfig {
		reply, err := next.claim(t.Context(), &ClaimRequest{
			Key: "job", Hash: "content", TaskID: id, Owner: Owner{AllocID: "alloc", NodeID: "node"},
		})
		must.NoError(t, err)
		must.Eq(t, Start, reply.Verdict)
		cfg := &drivers.TaskConfig{
			ID: id, AllocID: "alloc", Name: "main", NodeID: "node", Env: map[string]string{"PATH": os.Getenv("PATH")},
		}
		text := "echo started >> " + starts + "; exec sleep " + mark
		value, errs := schema.Value(schema.Of[scriptConfig]().Spec(), map[string]any{"text": text})
		must.SliceEmpty(t, errs)
		must.NoError(t, cfg.EncodeDriverConfig(value))
		return cfg
	}
	next = newShim(t, dir)
	cfg := claims("alloc/main/1")
	var err error
	cfg.AllocDir, err = next.allocs.make(cfg.AllocID, cfg.Name, os.Geteuid(), os.Getegid())
	must.NoError(t, err)
	_, _, err = next.Driver.StartTask(cfg)
	must.NoError(t, err)
	testsupport.WaitSleepers(t, mark, 1)
	must.NoError(t, next.Close())
	side{next.runs, t, "node"}.leave()
	next = newShim(t, dir)
	return next, claims
}

// shortDir returns a directory with a short path, because the path of a socket there may have at most 107 bytes.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "or")
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, os.RemoveAll(dir)) })
	must.NoError(t, os.Chmod(dir, 0o711))
	return dir
}

// ends ends the run of a task as its owner, and waits until no process uses dir any more, not even the supervisor.
func ends(t *testing.T, h *host, dir, mark, id string) {
	t.Helper()
	_, err := h.change(t.Context(), &ChangeRequest{TaskID: id, AllocID: "alloc", State: Ending})
	must.NoError(t, err)
	must.SliceEmpty(t, testsupport.Sleepers(mark))
	all, err := h.runs.list()
	must.NoError(t, err)
	must.SliceEmpty(t, all)
	must.NoError(t, h.Close())
	testsupport.Eventually(t, "the supervisor ends without tasks", func() bool {
		return len(testsupport.Processes(func(args []string) bool {
			return slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, dir+"/") })
		})) == 0
	})
}

func TestStart_RecoversAnInterruptedStart(t *testing.T) {
	t.Parallel()
	dir, mark := shortDir(t), testsupport.Mark()
	h, claims := interrupted(t, dir, mark)
	_, _, err := h.StartTask(claims("alloc/main/2"))
	must.NoError(t, err)
	testsupport.WaitSleepers(t, mark, 1)
	content, err := os.ReadFile(filepath.Join(dir, "starts"))
	must.NoError(t, err)
	must.Eq(t, "started\n", string(content))
	all, err := h.runs.list()
	must.NoError(t, err)
	must.SliceLen(t, 1, all)
	must.Eq(t, "alloc/main/2", all[0].TaskID)
	ends(t, h, dir, mark, "alloc/main/2")
}

// The later claims start no task. When the run ends, the host must therefore end the task of the first claim.
func TestEnd_EndsInterruptedStarts(t *testing.T) {
	t.Parallel()
	dir, mark := shortDir(t), testsupport.Mark()
	h, claims := interrupted(t, dir, mark)
	claims("alloc/main/2")
	claims("alloc/main/3")
	ends(t, h, dir, mark, "alloc/main/3")
}
