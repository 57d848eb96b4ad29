// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// output is all of a program that has ended.
func (o *object) output() string {
	o.t.Helper()
	_, err := o.h.Watch(o.t.Context(), o.ref)
	must.NoError(o.t, err)
	b, err := os.ReadFile(filepath.Join(filepath.Dir(o.record()), "alloc/logs/web.stdout.0"))
	must.NoError(o.t, err)
	return string(b)
}

func (o *object) put(name, text string, mode int64) error {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		_ = t.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(text)), Typeflag: tar.TypeReg})
		_, _ = io.WriteString(t, text)
		w.CloseWithError(t.Close())
	}()
	return o.h.Put(o.t.Context(), o.ref, r)
}

// A node that hangs in the middle of a file has lost the task when it goes on.
func TestPut_ReplacesNothingOfTheNextOwner(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	o, s := m.object(t), shell("cat local/f")
	must.NoError(t, o.h.Prepare(t.Context(), o.ref, s, nil))
	r, w := io.Pipe()
	late := make(chan error)
	go func() { late <- o.h.Put(t.Context(), o.ref, r) }()
	tw := tar.NewWriter(w)
	must.NoError(t, tw.WriteHeader(&tar.Header{Name: "local/f", Mode: 0o644, Size: 3, Typeflag: tar.TypeReg}))
	_, err := io.WriteString(tw, "ol")
	must.NoError(t, err)
	testsupport.Eventually(t, "the file is begun", func() bool {
		found, _ := filepath.Glob(filepath.Join(filepath.Dir(o.record()), "web/local/.outrider-*"))
		return len(found) == 1
	})
	taken, err := o.h.Take(t.Context(), o.ref, endpoint.Owner{Alloc: "b", Node: "b", TaskID: "b/web/1"})
	must.NoError(t, err)
	o.ref = taken.Ref()
	must.NoError(t, o.put("local/f", "new", 0o644))
	_, err = io.WriteString(tw, "d")
	must.NoError(t, err)
	w.CloseWithError(tw.Close())
	must.ErrorIs(t, <-late, endpoint.ErrEpoch)
	_, err = o.h.Start(t.Context(), o.ref, s)
	must.NoError(t, err)
	must.Eq(t, "new", o.output())
}

// A task may redirect what is copied into alloc/data/, but not to its neighbours there, which are root's.
func TestPut_IsNotLedToTheLogs(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	o := m.object(t)
	must.NoError(t, o.h.Prepare(t.Context(), o.ref, shell("true"), nil))
	alloc := filepath.Join(filepath.Dir(o.record()), "alloc")
	must.NoError(t, os.Symlink("..", filepath.Join(alloc, "data/a")))
	test.Error(t, o.put("data/a/logs/f", "text", 0o644))
	test.FileNotExists(t, filepath.Join(alloc, "logs/f"))
	test.NoError(t, o.put("data/b/f", "text", 0o644))
	test.FileContains(t, filepath.Join(alloc, "data/b/f"), "text")
}

// zeros is input without end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }
func (zeros) Close() error               { return nil }

// Who may run commands in a task can leave input and output unread.
func TestExec_HoldsUpNothingElse(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	o := m.start(t, "sleep 1000")
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 90 {
		all.Go(func() {
			e := &endpoint.ExecOptions{Command: []string{"sleep", "1000"}, Stdin: zeros{}}
			if i >= 20 {
				_, out := io.Pipe() // nobody reads
				e = &endpoint.ExecOptions{Command: []string{"cat", "/dev/zero"}, Stdout: out}
				defer context.AfterFunc(ctx, func() { _ = out.Close() })()
			}
			_, _ = o.h.Exec(ctx, o.ref, e)
		})
	}
	time.Sleep(3 * time.Second)
	asked, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	_, err := o.h.Get(asked, o.ref.Name)
	cancel()
	all.Wait()
	must.NoError(t, err)
}

func TestStart_HasTheEnvironmentOfALogin(t *testing.T) {
	t.Setenv("OUTRIDER_OF_THE_AGENT", "x")
	m := newMachine(t, os.Geteuid())
	o := m.object(t)
	s := &endpoint.Spec{Task: "web", Env: map[string]string{"A": "1", "EMPTY": "", "HOME": "/somewhere"},
		Process: &endpoint.Process{Command: "prog", WorkDir: "local/sub"}}
	must.NoError(t, o.h.Prepare(t.Context(), o.ref, s, nil))
	must.NoError(t, o.put("local/prog", "#!/bin/sh\npwd; umask; env | sort\n", 0o644)) // not executable, as artifacts are
	must.NoError(t, o.put("local/sub/x", "", 0o644))
	_, err := o.h.Start(t.Context(), o.ref, s)
	must.NoError(t, err)
	out := "\n" + o.output()
	for _, want := range []string{
		"/" + o.ref.Name + "/web/local/sub\n", "\n0022\n", "\nA=1\n", "\nEMPTY=\n", "\nHOME=/somewhere\n",
		"\nPATH=" + os.Getenv("PATH") + "\n",
	} {
		test.StrContains(t, out, want)
	}
	test.StrNotContains(t, out, "OUTRIDER_OF_THE_AGENT")
	test.StrNotContains(t, out, shimVar)
}

func TestPrepare_LetsAnotherUserReachItsDirectory(t *testing.T) {
	testsupport.NeedRoot(t)
	m := newMachine(t, 0)
	must.NoError(t, os.Chmod(m.dir, 0o700))
	o, s := m.object(t), shell("id -u; echo $HOME; pwd")
	s.User = "nobody"
	must.NoError(t, o.h.Prepare(t.Context(), o.ref, s, nil))
	_, err := o.h.Start(t.Context(), o.ref, s)
	must.NoError(t, err)
	must.StrHasPrefix(t, fmt.Sprintf("%d\n/nonexistent\n/", nobody), o.output())

	closed := m.object(t)
	must.NoError(t, os.Chmod(filepath.Dir(m.dir), 0o700))
	err = closed.h.Prepare(t.Context(), closed.ref, s, nil)
	must.ErrorContains(t, err, "is closed to others: set state_dir to one elsewhere")
	for user, want := range map[string]string{
		"no-such-user": `user "no-such-user" does not exist on the host`, "+0": "is neither a name nor an id",
		"nobody:no-such-group": `group "no-such-group" does not exist on the host`,
	} {
		s.User = user
		must.ErrorContains(t, closed.h.Prepare(t.Context(), closed.ref, s, nil), want)
	}
}

func TestPrepare_OnlyRootChoosesAnotherUser(t *testing.T) {
	testsupport.NeedRoot(t)
	m := newMachine(t, nobody)
	o, s := m.object(t), shell("id -u")
	s.User = "root"
	must.ErrorContains(t, o.h.Prepare(t.Context(), o.ref, s, nil), "only where the connection's user on the host is root")
	s.User = "nobody:root"
	must.ErrorContains(t, o.h.Prepare(t.Context(), o.ref, s, nil), `run with group "root" only where`)
	s.User = "nobody"
	s.Resources.Memory = 64 << 20
	must.NoError(t, o.h.Prepare(t.Context(), o.ref, s, nil))
	_, err := o.h.Start(t.Context(), o.ref, s)
	must.NoError(t, err)
	must.Eq(t, fmt.Sprintf("%d\n", nobody), o.output())
	must.StrContains(t, o.get().More["limits"], "not enforced: limits need cgroups")
	facts, err := o.h.Probe(t.Context())
	must.NoError(t, err)
	must.StrContains(t, facts.Limits, "only root can use")
	must.StrContains(t, "1 2 none", facts.More["cgroup"])
	program, err := os.ReadFile("/proc/self/exe")
	must.NoError(t, err)
	must.Eq(t, supervisor.BuildOf(program), facts.More["shim"])
}

func TestStart_HasLimits(t *testing.T) {
	testsupport.NeedRoot(t)
	m := newMachine(t, 0)
	o, s := m.object(t), shell("exec sleep 1000")
	s.Resources = endpoint.Resources{CPU: 0.5, Memory: 64 << 20, Pids: 17}
	must.NoError(t, o.h.Prepare(t.Context(), o.ref, s, nil))
	_, err := o.h.Start(t.Context(), o.ref, s)
	must.NoError(t, err)
	g := cgroup.TaskBelow(cgroup.Detect(""), shim.CgroupParent(m.dir), o.ref.Name)
	files := map[string]string{}
	switch g.Mode {
	case cgroup.V1:
		files[g.V1["memory"]+"/memory.limit_in_bytes"] = "67108864"
		files[g.V1["cpu"]+"/cpu.cfs_quota_us"] = "50000"
		files[g.V1["pids"]+"/pids.max"] = "17"
	case cgroup.V2:
		files[g.Path+"/memory.max"], files[g.Path+"/cpu.max"], files[g.Path+"/pids.max"] = "67108864", "50000 100000", "17"
	default:
		must.StrContains(t, o.get().More["limits"], "not enforced")
	}
	for file, want := range files {
		b, err := os.ReadFile(file)
		must.NoError(t, err)
		test.Eq(t, want, strings.TrimSpace(string(b)), test.Sprint(file))
	}
}

// A stream that began before another owner came puts nothing after that.
func TestPut_EndsWithItsOwner(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	o := m.object(t)
	must.NoError(t, o.h.Prepare(t.Context(), o.ref, shell("exit 0"), nil))
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- o.h.Put(t.Context(), o.ref, r) }()
	files := tar.NewWriter(w)
	add := func(name string) {
		must.NoError(t, files.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: 1, Typeflag: tar.TypeReg}))
		_, err := files.Write([]byte("x"))
		must.NoError(t, err)
		must.NoError(t, files.Flush())
	}
	dir := filepath.Join(filepath.Dir(o.record()), "web/local")
	add("local/first")
	testsupport.Eventually(t, "the first is there", func() bool { return testsupport.Exists(filepath.Join(dir, "first")) })
	_, err := m.host().Take(t.Context(), o.ref, endpoint.Owner{TaskID: "b"})
	must.NoError(t, err)
	add("local/second")
	end := time.AfterFunc(20*time.Second, func() { w.CloseWithError(io.ErrUnexpectedEOF) })
	defer end.Stop()
	must.ErrorIs(t, <-done, endpoint.ErrEpoch)
	test.False(t, testsupport.Exists(filepath.Join(dir, "second")))
	w.Close()
}

func TestPut_MakesNoDirectoryOfTheNextOwner(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	o := m.object(t)
	must.NoError(t, o.h.Prepare(t.Context(), o.ref, shell("exit 0"), nil))
	local := filepath.Join(filepath.Dir(o.record()), "web/local")
	for _, late := range []string{"local/late/", "local/late/f", "secrets/f"} {
		r, w := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- o.h.Put(t.Context(), o.ref, r) }()
		files := tar.NewWriter(w)
		must.NoError(t, files.WriteHeader(&tar.Header{Name: "local/first/", Typeflag: tar.TypeDir}))
		must.NoError(t, files.Flush())
		testsupport.Eventually(t, "the first is there", func() bool {
			return testsupport.Exists(filepath.Join(local, "first"))
		})
		taken, err := m.host().Take(t.Context(), o.ref, endpoint.Owner{TaskID: "b"})
		must.NoError(t, err)
		must.NoError(t, os.Remove(filepath.Join(local, "first")))
		of := filepath.Join(local, "../secrets/.outrider-put-of-the-next")
		must.NoError(t, os.WriteFile(of, nil, 0o600))
		_ = files.WriteHeader(&tar.Header{Name: late, Mode: 0o600}) // the shim may refuse it before its end
		_ = files.Flush()
		w.Close()
		must.ErrorIs(t, <-done, endpoint.ErrEpoch, must.Sprint(late))
		test.False(t, testsupport.Exists(filepath.Join(local, "late")), test.Sprint(late))
		test.True(t, testsupport.Exists(of), test.Sprint(late))
		o.ref = taken.Ref()
	}
}

// A shim that is killed amid a file leaves it.
func TestPut_RemovesHalvesOfEarlierOnes(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	o := m.object(t)
	must.NoError(t, o.h.Prepare(t.Context(), o.ref, shell("exit 0"), nil))
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- o.h.Put(t.Context(), o.ref, r) }()
	files := tar.NewWriter(w)
	must.NoError(t, files.WriteHeader(&tar.Header{Name: "local/a/b", Mode: 0o600, Size: 2}))
	_, err := files.Write([]byte("x"))
	must.NoError(t, err)
	local := filepath.Join(filepath.Dir(o.record()), "web/local")
	halves := func() []string {
		found, err := filepath.Glob(filepath.Join(local, ".outrider-*"))
		must.NoError(t, err)
		return found
	}
	testsupport.Eventually(t, "the file is begun", func() bool { return len(halves()) == 1 })
	m.cut(t, o.h)
	w.Close()
	must.Error(t, <-done)
	must.Len(t, 1, halves())
	must.NoError(t, o.put("local/a/c", "x", 0o600))
	must.SliceEmpty(t, halves())
	test.FileExists(t, filepath.Join(local, "a/c"))
}
