// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/simulate"
	"github.com/outrider-dev/outrider/plugins/remote/simulate/simulatetest"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
	"github.com/outrider-dev/outrider/plugins/remote/upload"
)

// A log-in without rights has all that root has but limits, and an event says so.
func TestEngine_WorksForAnOrdinaryUser(t *testing.T) {
	host := simulatetest.New(t, simulate.Options{})
	n := &nomad{lost: map[string]bool{}, over: map[string]bool{}}
	start := func(alloc string) *plugin {
		client, err := ssh.New(ssh.Config{
			Host: host.Address, Port: host.Port, User: simulate.User, KeyFile: host.KeyFile, HostKeys: []string{host.HostKey},
		})
		must.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		p := &plugin{alloc: alloc, spec: shell(`id -un; echo $HOME; trap 'echo bye; exit 3' TERM; while :; do sleep 0.05; done`)}
		p.spec.Resources.Memory = 64 << 20
		p.connect(t, n, upload.New(client, "").Dial)
		p.start(t)
		return p
	}
	home, err := os.Stat(host.Path(host.Home(simulate.User)))
	must.NoError(t, err)
	uid := fmt.Sprint(home.Sys().(*syscall.Stat_t).Uid)
	a := start("alloc-0")
	test.StrContains(t, a.said(), "Warning: limits of resources at endpoint host are not enforced: limits need cgroups, "+
		"which on the host only root can use: tasks run there as user id "+uid)
	testsupport.Eventually(t, "the output is there", func() bool {
		return string(a.output(t, "stdout")) == "remote\n/home/remote\n"
	})
	pid := func(p *plugin) string {
		t.Helper()
		var run driver.Run
		p.task.(driver.Describer).Describe(&run)
		return run.Attributes["pid"]
	}
	out := &buffer{}
	exit, err := a.task.(driver.Executor).Exec(t.Context(), &drivers.ExecOptions{
		Command: []string{"/bin/sh", "-c", "id -u; pwd; exit 4"}, Stdout: out, Stderr: out,
	})
	must.NoError(t, err)
	test.Eq(t, 4, exit.Code)
	test.StrHasPrefix(t, uid+"\n/home/remote/.local/state/outrider-remote/objects/nomad-", out.String())

	must.NoError(t, a.task.(driver.Stopper).Stop(t.Context(), time.Second, ""))
	n.mu.Lock()
	n.over["alloc-0"], n.stop = true, true
	n.mu.Unlock()
	b := start("alloc-1")
	test.StrContains(t, b.said(), "Took over the running object")
	test.Eq(t, pid(a), pid(b))
	must.NoError(t, b.task.(driver.Stopper).Stop(t.Context(), 10*time.Second, "SIGTERM"))
	must.NotNil(t, b.task.Exit())
	test.Eq(t, 3, b.task.Exit().Code)
	testsupport.Eventually(t, "the rest of the output is there", func() bool {
		return string(b.output(t, "stdout")) == "bye\n"
	})
	b.task.(driver.Teller).Told(t.Context())
	must.NoError(t, b.Destroy(t.Context(), b.id()))
	list, err := b.host.List(t.Context())
	must.NoError(t, err)
	test.SliceEmpty(t, list)
	remote, _ := strconv.Atoi(pid(a))
	test.Eq(t, 0, host.PID(remote))
}

type buffer struct{ bytes.Buffer }

func (b *buffer) Close() error { return nil }

// What a task may write it may replace by a link at any time. The shim is root there, and follows none.
func TestLinks_OfATaskAreNotFollowedByRoot(t *testing.T) {
	testsupport.NeedRoot(t)
	m := newMachine(t, 0)
	victim := t.TempDir()
	must.NoError(t, os.WriteFile(victim+"/file", []byte("root's"), 0o600))
	must.NoError(t, os.Mkdir(victim+"/dir", 0o700))
	untouched := func() {
		t.Helper()
		for path, mode := range map[string]string{"": "drwxr-xr-x", "/file": "-rw-------", "/dir": "drwx------"} {
			info, err := os.Lstat(victim + path)
			must.NoError(t, err)
			test.Eq(t, mode, info.Mode().String(), test.Sprint(path))
			test.Eq(t, 0, info.Sys().(*syscall.Stat_t).Uid, test.Sprint(path))
		}
		b, err := os.ReadFile(victim + "/file")
		must.NoError(t, err)
		test.Eq(t, "root's", string(b))
		names, err := os.ReadDir(victim)
		must.NoError(t, err)
		test.SliceLen(t, 2, names)
	}
	must.NoError(t, os.Chmod(victim, 0o755))

	o, s := m.object(t), shell(fmt.Sprintf(`cd ..; v=%s
		rm -r web/local; ln -s $v web/local; ln -s $v/file web/secrets/file; ln -s $v/dir web/secrets/dir
		ln -s $v alloc/data/out; ln -s $v/file alloc/data/file; ln -s $v web/tmp/v; mkdir -m 0 web/tmp/closed
		ln -s $v/file alloc/logs/web.stdout.7 && echo planted; mv alloc/logs alloc/data/ && echo moved; echo ready
		exec sleep 1000`, victim))
	s.User = "nobody"
	must.NoError(t, o.h.Prepare(t.Context(), o.ref, s, nil))
	_, err := o.h.Start(t.Context(), o.ref, s)
	must.NoError(t, err)
	log, err := o.h.Logs(t.Context(), o.ref.Name, "stdout", o.get().Logs["stdout"].Place, 0)
	must.NoError(t, err)
	defer log.Close()
	chunk, err := log.Next()
	must.NoError(t, err)
	must.Eq(t, "ready\n", string(chunk.Data), must.Sprint("the task can write where its output is collected"))

	for _, name := range []string{"local/x", "local/dir/x", "secrets/dir/x", "data/out/x", "data/out/dir/x"} {
		test.Error(t, o.put(name, "the task's", 0o666), test.Sprint(name))
		untouched()
	}
	for _, name := range []string{"secrets/file", "data/file"} { // the link is replaced
		test.NoError(t, o.put(name, "the task's", 0o666), test.Sprint(name))
		untouched()
	}

	// where it could plant one after all, as a task of the shim's own user can
	must.NoError(t, os.Symlink(victim+"/file", o.dir()+"/alloc/logs/web.stdout.1"))
	_, err = log.Next()
	test.Error(t, err)
	test.False(t, err == io.EOF)

	_, err = o.h.Stop(t.Context(), o.ref, "SIGKILL", 0, "")
	must.NoError(t, err)
	must.NoError(t, o.h.Remove(t.Context(), o.ref))
	test.False(t, testsupport.Exists(o.dir()))
	untouched()
}

func (o *object) dir() string { return strings.TrimSuffix(o.record(), "/record.json") }
