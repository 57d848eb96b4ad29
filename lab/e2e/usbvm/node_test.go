// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbvm

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// node is the agent that all tests share.
type node struct{ agent.Agent }

func (n *node) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return n.Close(ctx)
}

// clientConfig makes the agent log changes of devices, and give tasks of exec only the programs that they use.
func clientConfig(t *testing.T) string {
	t.Helper()
	files := nomadtest.Files(t, "sh", "cat", "ls", "sleep", "stty", "head", "timeout", "lsusb", "id")
	files["/etc/passwd"], files["/etc/group"] = "/etc/passwd", "/etc/group"
	return "log_level = \"DEBUG\"\n" + nomadtest.Chroot(t, files)
}

var jobs atomic.Int64

// spec is a task to run: a shell script that uses a device.
type spec struct {
	driver string // empty: exec-lite
	device string // the type
	id     string // one device of the type; empty: any
	script string
}

// lastLine is the last line that each task prints. It can arrive after Nomad has reported the task's end.
const lastLine = "the end of the output"

// submit runs a job, waits until its allocation has a status, and returns the allocation's ID. The end of the test
// stops the job.
func (n *node) submit(t testing.TB, s spec, status string) (alloc string) {
	t.Helper()
	driver := cmp.Or(s.driver, "exec-lite")
	id := fmt.Sprintf("%s-%d", driver, jobs.Add(1))
	d := &api.RequestedDevice{Name: s.device}
	if s.id != "" {
		d = nomadtest.OneDevice(s.device, s.id)
	}
	script := s.script + "\nstatus=$?; echo " + lastLine + "; exit $status"
	job, main := nomadtest.Job(id, driver, nomadtest.Shell(script))
	main.User = "nobody"
	main.KillTimeout = new(2 * time.Second)
	main.Resources.MemoryMB, main.Resources.Devices = new(64), []*api.RequestedDevice{d}
	_, _, err := n.Client().Jobs().Register(job, nil)
	must.NoError(t, err, must.Sprint("failed to register job"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s printed %q and %q", id, n.output(alloc, "stdout"), n.output(alloc, "stderr"))
		}
		nomadtest.Stop(t, n.Client(), id)
	})
	alloc = nomadtest.Allocs(t, n.Client(), id, 1)[0].ID
	nomadtest.Becomes(t, n.Client(), id, status)
	return alloc
}

// prints runs a job whose task must succeed, and returns its output.
func (n *node) prints(t testing.TB, s spec) (out string) {
	t.Helper()
	alloc := n.submit(t, s, api.AllocClientStatusComplete)
	testsupport.Within(t, time.Minute, func() error {
		var whole bool
		out, whole = strings.CutSuffix(n.output(alloc, "stdout"), lastLine+"\n")
		if !whole {
			return fmt.Errorf("the end of the task's output is missing: %q", out)
		}
		return nil
	})
	return out
}

// output returns what the task of an allocation has printed to a stream.
func (n *node) output(alloc, stream string) string {
	b, _ := os.ReadFile(filepath.Join(n.DataDir(), "alloc", alloc, "alloc", "logs", "main."+stream+".0"))
	return string(b)
}

// tellLog prints the end of the agent's log, without debug messages.
func (n *node) tellLog() {
	log, err := n.Log()
	if err != nil {
		fmt.Println(err)
	}
	var lines []string
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "[DEBUG]") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	fmt.Println(strings.Join(lines[max(0, len(lines)-60):], "\n"))
}
