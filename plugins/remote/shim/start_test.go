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

// script runs the script in a job.
type script struct{}

type scriptConfig struct {
	Text string `codec:"text" required:"true" doc:"A script of sh."`
	core.TaskOptions
}

func (script) Command(_ context.Context, r core.Request[scriptConfig]) (*task.Command, error) {
	return r.Run("/bin/sh", "-c", r.Config.Text), nil
}

// newShim returns a shim with this directory.
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

// The shim ends after it has started a task, and before it has recorded that.
func TestStart_RecoversAnInterruptedStart(t *testing.T) {
	dir, err := os.MkdirTemp("", "or") // the path of a socket in it has at most 107 bytes
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, os.RemoveAll(dir)) })
	must.NoError(t, os.Chmod(dir, 0o711))
	starts, mark := filepath.Join(dir, "starts"), testsupport.Mark()
	claims := func(h *host, id string) *drivers.TaskConfig {
		reply, err := h.claim(t.Context(), &ClaimRequest{
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
	first := newShim(t, dir)
	_, _, err = first.start(claims(first, "alloc/main/1"))
	must.NoError(t, err)
	testsupport.WaitSleepers(t, mark, 1)
	must.NoError(t, first.Close())
	side{first.runs, t, "node"}.leave()

	second := newShim(t, dir)
	_, _, err = second.StartTask(claims(second, "alloc/main/2"))
	must.NoError(t, err)
	testsupport.WaitSleepers(t, mark, 1)
	content, err := os.ReadFile(starts)
	must.NoError(t, err)
	must.Eq(t, "started\n", string(content))
	all, err := second.runs.list()
	must.NoError(t, err)
	must.SliceLen(t, 1, all)
	must.Eq(t, "alloc/main/2", all[0].TaskID)
	_, err = second.change(t.Context(), &ChangeRequest{TaskID: "alloc/main/2", AllocID: "alloc", State: Ending})
	must.NoError(t, err)
	must.SliceEmpty(t, testsupport.Sleepers(mark))
	must.NoError(t, second.Close())
	testsupport.Eventually(t, "the supervisor ends without tasks", func() bool {
		return len(testsupport.Processes(func(args []string) bool {
			return slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, dir+"/") })
		})) == 0
	})
}
