// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

const strangerID = 65534

// listenAsStranger listens as another user. What is said to it comes from the channel, by
// connection, each when that has ended.
func listenAsStranger(t *testing.T, path string) (*net.UnixListener, <-chan string) {
	t.Helper()
	var l *net.UnixListener
	testsupport.AsUser(t, strangerID, func() (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		return err
	})
	t.Cleanup(func() { l.Close() })
	said := make(chan string, 1000)
	go func() {
		defer close(said)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second)) // one that waits for an answer does not end
			b, _ := io.ReadAll(c)
			c.Close()
			said <- string(b)
		}
	}()
	return l, said
}

func TestStateDir_ReplaceableByOthersGetsNoTask(t *testing.T) {
	t.Parallel()
	needRootAgent(t)
	t.Run("at the agent's start", func(t *testing.T) {
		t.Parallel()
		dir, err := os.MkdirTemp(scratch, "s")
		must.NoError(t, err)
		must.NoError(t, os.Chown(dir, strangerID, strangerID))
		n, err := startNode(t.Name(), nodeOptions{state: dir})
		if err == nil {
			n.end()
			t.Fatal("the agent runs")
		}
		want := "state_dir can't be used: " + dir + " belongs to user 65534, "
		test.StrContains(t, err.Error(), want, test.Sprintf("the agent does not say %q:\n%v", want, err))
	})
	t.Run("while the agent runs", func(t *testing.T) {
		t.Parallel()
		n := newNode(t, nodeOptions{})
		taken := filepath.Dir(n.store())
		must.NoError(t, os.MkdirAll(n.store(), 0o755))
		for _, dir := range []string{taken, n.store()} {
			must.NoError(t, os.Chown(dir, strangerID, strangerID))
		}
		t.Cleanup(func() {
			test.NoError(t, os.RemoveAll(taken))
		})
		l, said := listenAsStranger(t, filepath.Join(n.store(), "supervisor.sock"))

		j := job(t, sh("echo $SECRET"), func(_ *api.Job, task *api.Task) { task.Env = map[string]string{"SECRET": "stolen"} })
		_, _, err := n.Client().Jobs().Register(j, nil)
		must.NoError(t, err)
		// the task is refused, or is not even placed, as the driver has been found unhealthy
		want := "state directory can't be used: " + taken + " belongs to user 65534, "
		unhealthy := "state_dir can't be used: " + taken + " belongs to user 65534, "
		refused := testsupport.Poll(time.Minute, func() error {
			nodes, _, err := n.Client().Nodes().List(nil)
			if err != nil {
				return err
			}
			if d := nodes[0].Drivers["exec-lite"]; !d.Healthy && strings.Contains(d.HealthDescription, unhealthy) {
				return nil
			}
			list, _, err := n.Client().Jobs().Allocations(*j.ID, false, nil)
			if err != nil {
				return err
			}
			for _, i := range list {
				a := &alloc{n: n, job: *j.ID, id: i.ID}
				if s := a.story(); strings.Contains(s, api.TaskDriverFailure) && strings.Contains(s, want) {
					return nil
				}
			}
			return fmt.Errorf("neither does the driver say %q nor a task's events %q", unhealthy, want)
		})
		test.NoError(t, refused)
		l.Close()
		for s := range said {
			test.Eq(t, "", s, test.Sprint("the stranger was told"))
		}
	})
}
