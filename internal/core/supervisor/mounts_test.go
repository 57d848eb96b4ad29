// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// withMounts gives a task a device, and with that its own mount namespace.
func withMounts(st *task.State) {
	st.Command.Devices = []task.Device{{HostPath: "/dev/null", TaskPath: "/dev/zigbee/tty"}}
}

// leaver returns a script that enters new user and mount namespaces. The main process enters them if how is "exec ",
// and a child process does if how is "".
func leaver(how string) string {
	return how + `unshare -Urm sh -c 'mount -t tmpfs none /dev/zigbee && echo mounted && exec sleep 600'; exit 1`
}

// mountsIn returns the mount namespace of a process in the format of readlink(1).
func mountsIn(t testing.TB, pid int) string {
	t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	must.NoError(t, err)
	return ns
}

func TestSession_NeverEntersANamespaceThatTheTaskCreated(t *testing.T) {
	testsupport.NeedRoot(t) // to mount
	h := newHost(t, withoutCgroup)
	c := h.client()
	left := h.launch(c, h.shell(leaver("exec "), withMounts))
	childLeft := h.launch(c, h.shell(leaver(""), withMounts))
	h.waitOutput(left, "mounted\n")
	h.waitOutput(childLeft, "mounted\n")
	host, its := mountsIn(t, os.Getpid()), mountsIn(t, left.Identity.PID)
	if left.Mounts == nil || childLeft.Mounts == nil {
		t.Fatal("the mount namespaces that were created are not saved")
	}
	made := fmt.Sprintf("mnt:[%d]", left.Mounts.Inode)
	must.NotEq(t, host, made, must.Sprint("the saved namespace is the host's"))
	must.NotEq(t, its, made, must.Sprint("the saved namespace is the one that the task created"))
	const look = "readlink /proc/self/ns/mnt /dev/zigbee/tty; readlink /proc/self/fd/* | grep -c mnt:"
	// runs checks that a session is in the namespace that the launcher created, and has no descriptor of it
	runs := func(when string, st *task.State) {
		t.Helper()
		ended, out := h.session(c, st.ID, look)
		defer out.Close()
		b, err := io.ReadAll(out)
		must.NoError(t, err)
		<-ended
		test.Eq(t, fmt.Sprintf("mnt:[%d]\n/dev/null\n0\n", st.Mounts.Inode), string(b),
			test.Sprintf("%s: a command in the task prints %q", when, b))
	}
	refused := func(when string) {
		t.Helper()
		_, err := c.Exec(ctx(t), left.ID, &ExecSpec{Session: "s" + when, Path: "/bin/true"}, [3]*os.File{os.Stdin,
			os.Stdout, os.Stderr})
		test.EqError(t, err, errLeftMounts.Error(),
			test.Sprintf("%s: a command in the task: %v, want %v", when, err, errLeftMounts))
	}
	runs("as they are", left)
	runs("as they are", childLeft)
	h.kill(h.supervisor(), unix.SIGKILL)
	h.isServed(c)
	refused("supervisor killed")
	runs("supervisor killed", childLeft)
	for _, st := range []*task.State{left, childLeft} {
		must.NoError(t, c.Kill(ctx(t), st.ID))
		h.wait(c, st.ID)
	}
	held := namespacesOf(t, h.supervisor())
	test.SliceEmpty(t, held, test.Sprintf("the supervisor holds %v of tasks that have ended", held))
	h.destroy(c, left.ID)
	h.destroy(c, childLeft.ID)
}

// namespacesOf returns the mount namespaces for which a process has descriptors.
func namespacesOf(t testing.TB, pid int) (held []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(to, "mnt:") {
			held = append(held, to)
		}
	}
	return held
}

// The inode of a namespace may be reused, so a namespace with the right inode may still have another owner.
func TestCheckMounts_RefusesAForeignUserNamespace(t *testing.T) {
	testsupport.NeedRoot(t) // to mount
	for _, row := range []struct {
		flags string
		want  error
	}{{"-m", nil}, {"-Urm", errLeftMounts}} {
		cmd := exec.Command("unshare", row.flags, "sh", "-c", "echo there; exec cat")
		in, err := cmd.StdinPipe()
		must.NoError(t, err)
		out, err := cmd.StdoutPipe()
		must.NoError(t, err)
		must.NoError(t, cmd.Start())
		_, err = io.ReadFull(out, make([]byte, len("there\n")))
		must.NoError(t, err)
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", cmd.Process.Pid))
		must.NoError(t, err)
		name, err := identifyMounts(ns)
		must.NoError(t, err)
		test.ErrorIs(t, checkMounts(ns, name), row.want, test.Sprintf("unshare %s", row.flags))
		other := name
		other.ID++
		if err := checkMounts(ns, other); err != errLeftMounts {
			t.Errorf("unshare %s: the same inode with another id: %v", row.flags, err)
		}
		ns.Close()
		in.Close()
		must.NoError(t, cmd.Wait())
	}
}

func TestSession_IsRefusedIfItsMountNamespaceIsUnknown(t *testing.T) {
	testsupport.NeedRoot(t) // to mount
	h := newHost(t, withoutCgroup)
	c := h.client()
	st := h.launch(c, h.shell("exec sleep 600", withMounts))
	plain := h.launch(c, h.shell("exec sleep 600"))
	for _, id := range []string{st.ID, plain.ID} { // remove the namespace, which earlier versions did not save
		path := filepath.Join(h.store.TaskDir(id), "task.json")
		b, err := os.ReadFile(path)
		must.NoError(t, err)
		var fields map[string]json.RawMessage
		must.NoError(t, json.Unmarshal(b, &fields))
		delete(fields, "mounts")
		b, err = json.Marshal(fields)
		must.NoError(t, err)
		must.False(t, bytes.Contains(b, []byte(`"inode"`)), must.Sprintf("the namespace is still in %s", b))
		must.NoError(t, os.WriteFile(path, b, 0o600))
	}
	h.kill(h.supervisor(), unix.SIGKILL)
	h.isServed(c)
	stdio := [3]*os.File{os.Stdin, os.Stdout, os.Stderr}
	_, err := c.Exec(ctx(t), st.ID, &ExecSpec{Session: "one", Path: "/bin/true"}, stdio)
	test.EqError(t, err, errUnknownMounts.Error(),
		test.Sprintf("a command in a task with devices: %v, want %v", err, errUnknownMounts))
	ended, out := h.session(c, plain.ID, "echo ran")
	defer out.Close()
	b, err := io.ReadAll(out)
	must.NoError(t, err, must.Sprintf("a command in a task without devices: %q", b))
	test.Eq(t, "ran\n", string(b), test.Sprintf("a command in a task without devices: %q", b))
	<-ended
	h.destroy(c, st.ID)
	h.destroy(c, plain.ID)
}
