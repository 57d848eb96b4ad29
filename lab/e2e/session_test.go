// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// leftMounts is in what a session in a task is refused with that has left the mount
// namespace which was made for it.
const leftMounts = "the task's processes have left its mount namespace"

// attackable is a task with a device or a mount, and the ways in which Nomad runs a
// command in it: by hand, as a script check, as a template's script.
type attackable struct {
	*alloc
	kind    string
	hostile bool
}

// TestExec_RunsNothingPlantedByTask: tasks without rights have exchanged
// the loader of all programs in namespaces of their own; Nomad runs a set-user-ID program
// in each of them, and in tasks that have not.
func TestExec_RunsNothingPlantedByTask(t *testing.T) {
	needRootAgent(t)
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	mount := exec.Command("unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/tmp")
	mount.SysProcAttr = nobody
	if mount.Run() != nil {
		t.Skip("needs user namespaces for every user")
	}
	t.Parallel()
	dir := mkdir(t)
	evidence, hostile, setUID := filepath.Join(dir, "evidence"), filepath.Join(dir, "hostile"), filepath.Join(dir, "id")
	build := exec.Command("go", "build", "-ldflags", "-X main.evidence="+evidence, "-o", hostile, "./hostile")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("failed to build the attack: %v\n%s", err, out)
	}
	touch(t, evidence)
	program, err := exec.LookPath("id")
	if err == nil {
		err = errors.Join(os.Chmod(evidence, 0o666), os.Chmod(hostile, 0o755), exec.Command("cp", program, setUID).Run(),
			os.Chmod(setUID, 0o755|os.ModeSetuid))
	}
	must.NoError(t, err)
	honest := exec.Command(setUID, "-u")
	honest.SysProcAttr = nobody
	want, err := honest.Output() // not root's id where /tmp is mounted nosuid
	must.NoError(t, err)

	root, shared := filepath.Join(dir, "usb"), mkdir(t)
	plug(t, root, "-id", "10c4:ea60", "-serial", "0001")
	plug(t, root, "-id", "0403:6001", "-serial", "0001", "-port", "1-2")
	consul := newConsul(t)
	n := newNode(t, consul.options(nodeOptions{usb: &usbOptions{root: root, more: fmt.Sprintf(`
device "zigbee" {
  id    = "10c4:ea60"
  mode  = "0666"
  count = 2
}
device "gps" {
  id    = "0403:6001"
  mode  = "0666"
  count = 2
  mount {
    host_path = %q
    task_path = "/dev/shared"
  }
}`, shared)}}))
	n.offers(t, "0403:6001:0001#1", "0403:6001:0001#2", "10c4:ea60:0001#1", "10c4:ea60:0001#2")

	var tasks []*attackable
	for _, kind := range []string{"zigbee", "gps"} {
		for _, a := range []struct {
			name    string
			hostile bool
			script  string
		}{
			{"hostile", true, fmt.Sprintf("exec unshare -Urm %s attack %s", hostile, loaderOf(t, setUID))},
			{"honest", false, "echo attached; exec sleep 600"},
		} {
			j := job(t, sh(a.script), withDevice(kind), asUser("nobody"), withSessions(setUID, "-u"))
			setVariable(t, n, *j.ID, "at first")
			tasks = append(tasks, &attackable{n.submit(t, j), kind + ", " + a.name, a.hostile})
		}
	}
	for _, a := range tasks {
		a.running(t)
		a.says(t, "stdout", "attached\n")
	}

	// await polls, and ends the test as soon as a command was exchanged.
	await := func(what string, ok func() error) {
		t.Helper()
		err := testsupport.Poll(2*time.Minute, func() error {
			b, err := os.ReadFile(evidence)
			must.NoError(t, err, must.Sprint(what))
			must.SliceEmpty(t, b, must.Sprint(what))
			return ok()
		})
		test.NoError(t, err, test.Sprint(what))
	}
	for _, phase := range []struct {
		name    string
		do      func()
		refused bool // the tasks that have left their namespace, of which nobody has a descriptor any more
	}{
		{"as they are", func() {}, false},
		{"plugin killed", func() { n.plugin(t).end(t) }, false},
		{"agent restarted", func() { kill(t, n); n.restart(t) }, false},
		{"supervisor killed", func() { n.supervisor(t).end(t) }, true},
	} {
		phase.do()
		checked := map[*attackable]int{}
		for _, a := range tasks {
			checked[a] = len(consul.told(a.job))
		}
		for _, a := range tasks {
			refused := a.hostile && phase.refused
			await(phase.name+", "+a.kind+", alloc exec", func() error {
				out, err := a.try(t, setUID, "-u")
				if refused && err != nil && strings.Contains(err.Error(), leftMounts) || !refused && err == nil &&
					out == string(want) {
					return nil
				}
				return fmt.Errorf("got %q, %v", out, err)
			})
		}
		changed := time.Now()
		for _, a := range tasks {
			setVariable(t, n, a.job, phase.name)
		}
		for _, a := range tasks {
			refused := a.hostile && phase.refused
			await(phase.name+", "+a.kind+", script check", func() error {
				told := consul.told(a.job)
				if len(told) <= checked[a] {
					return errors.New("there was none")
				}
				s := told[len(told)-1]
				if refused && s.Status == "critical" && strings.Contains(s.Output, leftMounts) || !refused &&
					s.Status == "passing" && s.Output == string(want) {
					return nil
				}
				return fmt.Errorf("got %+v", s)
			})
			await(phase.name+", "+a.kind+", template's script", func() error {
				_, st, err := a.info()
				if err != nil {
					return err
				}
				for _, e := range st.Events {
					if e.Time < changed.UnixNano() {
						continue
					}
					failed := strings.Contains(e.DisplayMessage, "Template failed to run script") &&
						strings.Contains(e.DisplayMessage, leftMounts)
					if failed && refused || !refused && strings.Contains(e.DisplayMessage, "Template successfully ran script") {
						return nil
					}
				}
				return errors.New(a.story())
			})
		}
	}
	for _, a := range tasks {
		a.running(t)
		a.stop(t)
	}
	b, err := os.ReadFile(evidence)
	must.NoError(t, err, must.Sprint("at the end"))
	test.SliceEmpty(t, b, test.Sprint("at the end"))
}

// withSessions has Nomad run a command in the task as a check and when a variable of the
// job's changes.
func withSessions(command string, args ...string) func(*api.Job, *api.Task) {
	return func(j *api.Job, task *api.Task) {
		j.Type = new("service")
		task.Services = []*api.Service{{Name: "checked", Provider: "consul", Checks: []api.ServiceCheck{{
			Name: *j.ID, Type: "script", Command: command, Args: args, Interval: time.Second, Timeout: time.Minute,
		}}}}
		task.Templates = []*api.Template{{
			EmbeddedTmpl: new(fmt.Sprintf(`{{ with nomadVar "nomad/jobs/%s" }}{{ .value }}{{ end }}`, *j.ID)),
			DestPath:     new("local/value"),
			ChangeMode:   new("script"), ChangeScript: &api.ChangeScript{Command: &command, Args: args,
				Timeout:     new(time.Minute),
				FailOnError: new(false)}, Splay: new(time.Duration(0)),
		}}
	}
}

func setVariable(t testing.TB, n *node, job, value string) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		_, _, err := n.Client().Variables().Update(&api.Variable{Path: "nomad/jobs/" + job,
			Items: api.VariableItems{"value": value}}, nil)
		return err
	})
}

// try is session for a command that may be refused.
func (a *alloc) try(t testing.TB, argv ...string) (string, error) {
	i, _, err := a.info()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	code, err := a.n.Client().Allocations().Exec(ctx, i, "main", false, argv, strings.NewReader(""), &out, &errOut, nil,
		nil)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, errOut.String())
	}
	return out.String(), err
}

// loaderOf is the program interpreter of a program that is linked dynamically.
func loaderOf(t testing.TB, program string) string {
	t.Helper()
	f, err := elf.Open(program)
	must.NoError(t, err)
	defer f.Close()
	section := f.Section(".interp")
	must.NotNil(t, section, must.Sprintf("%s has no loader", program))
	b, err := section.Data()
	must.NoError(t, err)
	return strings.TrimRight(string(b), "\x00")
}
