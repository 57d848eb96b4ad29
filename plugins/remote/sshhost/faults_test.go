// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
	"github.com/outrider-dev/outrider/plugins/remote/sshhost"
)

// object is one on a machine.
type object struct {
	m   *machine
	t   *testing.T
	h   *sshhost.Host
	ref endpoint.Ref
}

func (m *machine) object(t *testing.T) *object {
	t.Helper()
	o := &object{m: m, t: t, h: m.host()}
	k := endpoint.Key{Job: t.Name(), Task: "web", Index: int(time.Now().UnixNano())}
	o.ref = endpoint.Ref{Name: k.Name("0123456789ab"), Epoch: 1}
	must.NoError(t, o.h.Create(t.Context(), &endpoint.Record{Name: o.ref.Name, Key: k}))
	t.Cleanup(func() {
		h, ctx := m.host(), context.Background()
		defer h.Close()
		r, err := h.Get(ctx, o.ref.Name)
		if errors.Is(err, endpoint.ErrGone) {
			return
		}
		must.NoError(t, err)
		if r.State == endpoint.Running || r.State == endpoint.Released {
			r, err = h.Stop(ctx, r.Ref(), "SIGKILL", 0, "end of the test")
			must.NoError(t, err)
		}
		must.NoError(t, h.Remove(ctx, r.Ref()))
	})
	return o
}

func (m *machine) start(t *testing.T, script string) *object {
	t.Helper()
	o := m.object(t)
	o.start(script)
	return o
}

func (o *object) start(script string) *endpoint.Record {
	o.t.Helper()
	must.NoError(o.t, o.h.Prepare(o.t.Context(), o.ref, shell(script), nil))
	r, err := o.h.Start(o.t.Context(), o.ref, shell(script))
	must.NoError(o.t, err)
	return r
}

func (o *object) get() *endpoint.Record {
	o.t.Helper()
	r, err := o.m.host().Get(o.t.Context(), o.ref.Name)
	must.NoError(o.t, err)
	return r
}

func (o *object) record() string { return filepath.Join(o.m.dir, "objects", o.ref.Name, "record.json") }

// edit changes a JSON file.
func edit(t *testing.T, path string, change func(m map[string]any)) {
	t.Helper()
	b, err := os.ReadFile(path)
	must.NoError(t, err)
	m := map[string]any{}
	must.NoError(t, json.Unmarshal(b, &m))
	change(m)
	b, err = json.Marshal(m)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(path, b, 0o600))
}

const trap = "trap 'exit 7' USR1; echo ready; while :; do sleep 0.02; done"

// Whoever is killed: as long as somebody is there to see the end, the exit is exact.
func TestFaults_ExitIsExactThroughKills(t *testing.T) {
	t.Parallel()
	m := newMachine(t, os.Geteuid())
	for name, fault := range map[string]func(o *object){
		"shim":                        func(o *object) { m.cut(t, o.h) },
		"supervisor":                  func(o *object) { kill(t, m.processes("outrider-supervisor")...) },
		"shim while the program ends": func(o *object) { m.cut(t, o.h); o.signal() },
		"both, one after the other": func(o *object) {
			m.cut(t, o.h)
			_ = o.get()
			kill(t, m.processes("outrider-supervisor")...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := m.start(t, trap)
			watched := make(chan *endpoint.Record, 1)
			other := m.host() // another node's
			go func() {
				r, err := other.Watch(t.Context(), o.ref)
				if err != nil {
					r = &endpoint.Record{Reason: err.Error()}
				}
				watched <- r
			}()
			o.says("ready\n")
			fault(o)
			testsupport.Within(t, time.Minute, func() error {
				if o.get().State == endpoint.Exited {
					return nil
				}
				return o.h.Signal(t.Context(), o.ref, "SIGUSR1")
			})
			r := <-watched
			must.NotNil(t, r.Exit, must.Sprintf("%+v", r))
			must.Eq(t, 7, r.Exit.Code, must.Sprintf("%+v", r.Exit))
			must.Eq(t, r.Exit, o.get().Exit)
		})
	}
}

func (o *object) signal() { must.NoError(o.t, unix.Kill(o.get().PID, unix.SIGUSR1)) }

func (o *object) says(text string) {
	o.t.Helper()
	testsupport.Eventually(o.t, "the program says "+text, func() bool {
		files, _ := filepath.Glob(filepath.Join(filepath.Dir(o.record()), "alloc/logs/web.stdout.*"))
		for _, f := range files {
			if b, _ := os.ReadFile(f); strings.Contains(string(b), text) {
				return true
			}
		}
		return false
	})
}

// A shim that is killed between the program and the record: the next call says what is so.
func TestFaults_RecordIsRepairedAfterACrash(t *testing.T) {
	t.Parallel()
	m := newMachine(t, os.Geteuid())
	for name, script := range map[string]string{"runs": "echo once; exec sleep 1000", "has ended": "echo once; exit 5"} {
		t.Run(name, func(t *testing.T) {
			o := m.object(t)
			s := shell(script)
			must.NoError(t, o.h.Prepare(t.Context(), o.ref, s, nil))
			before, err := os.ReadFile(o.record())
			must.NoError(t, err)
			started, err := o.h.Start(t.Context(), o.ref, s)
			must.NoError(t, err)
			o.says("once\n")
			m.cut(t, o.h)
			must.NoError(t, os.WriteFile(o.record(), before, 0o600))
			r, err := m.host().Start(t.Context(), o.ref, s)
			must.NoError(t, err)
			must.Eq(t, started.PID, r.PID)
			if script == "echo once; exit 5" {
				r, err = m.host().Watch(t.Context(), o.ref)
				must.NoError(t, err)
				must.Eq(t, 5, r.Exit.Code)
				return
			}
			must.Eq(t, endpoint.Running, r.State)
			must.NoError(t, os.WriteFile(o.record(), before, 0o600))
			r, err = m.host().Take(t.Context(), o.ref, endpoint.Owner{TaskID: "b"})
			must.NoError(t, err)
			must.Eq(t, endpoint.Running, r.State)
			b, err := os.ReadFile(filepath.Join(filepath.Dir(o.record()), "alloc/logs/web.stdout.0"))
			must.NoError(t, err)
			must.Eq(t, "once\n", string(b))
		})
	}
}

// Nobody has seen the end: it is lost, and not guessed.
func TestFaults_HostRestartIsLost(t *testing.T) {
	t.Parallel()
	m := newMachine(t, os.Geteuid())
	for _, state := range []endpoint.State{endpoint.Running, endpoint.Released} {
		t.Run(string(state), func(t *testing.T) {
			o := m.start(t, "exec sleep 1000")
			if state == endpoint.Released {
				must.NoError(t, o.h.Release(t.Context(), o.ref, endpoint.Mutable{}, "drained"))
			}
			pid := o.get().PID
			m.killAll(t)
			kill(t, pid)
			gone(t, pid)
			other := func(id any) { id.(map[string]any)["boot_id"] = "an earlier one" }
			edit(t, o.record(), func(r map[string]any) { other(r["identity"]) })
			states, err := filepath.Glob(filepath.Join(m.dir, "supervisor/tasks/*/task.json"))
			must.NoError(t, err)
			must.SliceNotEmpty(t, states)
			for _, f := range states {
				edit(t, f, func(s map[string]any) { other(s["identity"]) })
			}
			r := o.get()
			must.Eq(t, endpoint.Exited, r.State)
			must.True(t, r.Exit.Lost)
			must.Eq(t, "the host was restarted while it ran", r.Exit.Reason)
			must.Eq(t, state == endpoint.Released, r.GivenUp)
		})
	}
}

// What the supervisor wrote may be gone too after a power failure.
func TestFaults_HostRestartWithoutTheSupervisorsFilesIsLost(t *testing.T) {
	t.Parallel()
	m := newMachine(t, os.Geteuid())
	o := m.start(t, "exec sleep 1000")
	pid := o.get().PID
	m.killAll(t)
	kill(t, pid)
	gone(t, pid)
	edit(t, o.record(), func(r map[string]any) { r["identity"].(map[string]any)["boot_id"] = "an earlier one" })
	must.NoError(t, os.RemoveAll(filepath.Join(m.dir, "supervisor")))
	must.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(o.record()), "plan.json"), []byte("{"), 0o600))
	r := o.get()
	must.Eq(t, endpoint.Exited, r.State)
	must.True(t, r.Exit.Lost)
	support, parent := cgroup.Detect(""), shim.CgroupParent(m.dir) // a restart would have removed these
	must.NoError(t, cgroup.TaskBelow(support, parent, o.ref.Name).Remove())
	must.NoError(t, cgroup.LeafBelow(support, parent, "supervisor").Remove())
}

func TestFaults_DamagedRecordIsToldAndNotGuessed(t *testing.T) {
	t.Parallel()
	m := newMachine(t, os.Geteuid())
	good := m.start(t, "exec sleep 1000")
	for name, damage := range map[string]func(b []byte) []byte{
		"truncated": func(b []byte) []byte { return b[:len(b)/2] },
		"empty":     func([]byte) []byte { return nil },
		"another's": func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("nomad-"), []byte("xomad-")) },
	} {
		t.Run(name, func(t *testing.T) {
			o := m.start(t, "exec sleep 1000")
			pid := o.get().PID
			b, err := os.ReadFile(o.record())
			must.NoError(t, err)
			must.NoError(t, os.WriteFile(o.record(), damage(b), 0o600))
			r := o.get()
			must.Eq(t, endpoint.Damaged, r.State)
			must.StrContains(t, r.Reason, "record is damaged")
			list, err := o.h.List(t.Context())
			must.NoError(t, err)
			must.Len(t, 2, list)
			test.Error(t, o.h.Create(t.Context(), &endpoint.Record{Name: o.ref.Name, Key: endpoint.Key{Task: "web"}}))
			_, err = o.h.Take(t.Context(), o.ref, endpoint.Owner{})
			test.ErrorContains(t, err, "record is damaged")
			_, err = o.h.Stop(t.Context(), o.ref, "SIGTERM", 0, "stopped")
			test.ErrorContains(t, err, "record is damaged")
			test.Error(t, o.h.Remove(t.Context(), o.ref))
			must.NoError(t, unix.Kill(pid, 0), must.Sprint("its program was ended"))
			must.NoError(t, o.h.Remove(t.Context(), endpoint.Ref{Name: o.ref.Name}))
			_, err = o.h.Get(t.Context(), o.ref.Name)
			must.ErrorIs(t, err, endpoint.ErrGone)
			gone(t, pid)
		})
	}
	must.Eq(t, endpoint.Running, good.get().State)
}

// The answer to a release did not arrive, and the program has gone on or not.
func TestRelease_MayBeRepeated(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	mark := endpoint.Mutable{Logs: map[string]endpoint.LogMark{"stdout": {Alloc: "a"}}}
	for _, ends := range []bool{false, true} {
		o := m.start(t, trap)
		o.says("ready\n")
		must.NoError(t, o.h.Release(t.Context(), o.ref, mark, "drained"))
		want := endpoint.Released
		if ends {
			o.signal()
			_, err := o.h.Watch(t.Context(), o.ref)
			must.NoError(t, err)
			want = endpoint.Exited
		}
		before := o.get()
		must.Eq(t, want, before.State)
		must.NoError(t, m.host().Release(t.Context(), o.ref, mark, "drained"))
		after := o.get()
		must.True(t, after.GivenUp)
		before.Age, before.Lease, after.Age, after.Lease = 0, 0, 0, 0
		must.Eq(t, before, after)
		_, err := m.host().Take(t.Context(), o.ref, endpoint.Owner{TaskID: "b"})
		must.NoError(t, err)
		must.ErrorIs(t, o.h.Release(t.Context(), o.ref, mark, "drained"), endpoint.ErrEpoch)
	}
}

// Until a stop's grace is over the end of the main process alone decides nothing.
func TestWatch_RestsDuringTheGraceOfOthers(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	o := m.object(t)
	const loop = "while :; do sleep 0.05; done"
	s := shell("(trap '' TERM; echo ready; " + loop + ") & trap 'exit 4' TERM; " + loop)
	s.Process.Mode = "group"
	must.NoError(t, o.h.Prepare(t.Context(), o.ref, s, nil))
	_, err := o.h.Start(t.Context(), o.ref, s)
	must.NoError(t, err)
	o.says("ready\n")
	must.NoError(t, o.h.Renew(t.Context(), o.ref, endpoint.Mutable{})) // a look opens two files: no two events are one
	events, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must.NoError(t, err)
	defer unix.Close(events)
	_, err = unix.InotifyAddWatch(events, filepath.Dir(o.record()), unix.IN_OPEN|unix.IN_ONLYDIR)
	must.NoError(t, err)

	watched := make(chan *endpoint.Record, 1)
	go func() {
		r, err := m.host().Watch(t.Context(), o.ref)
		test.NoError(t, err)
		watched <- r
	}()
	const grace = 2 * time.Second
	r, err := o.h.Stop(t.Context(), o.ref, "SIGTERM", grace, "stopped")
	must.NoError(t, err)
	must.Eq(t, 4, r.Exit.Code)
	must.Eq(t, 4, (<-watched).Exit.Code)
	looks := 0
	for buf := make([]byte, 1<<20); ; {
		n, err := unix.Read(events, buf)
		if err != nil {
			break
		}
		looks += bytes.Count(buf[:n], []byte("record.json"))
	}
	must.Between(t, 10, looks, int(grace/(5*time.Millisecond)), must.Sprint("the stop itself looks each 10 ms"))
}

// The supervisor is dead, and what it wrote is damaged too.
func TestFaults_DamagedObjectIsRemovedWithAllThatRuns(t *testing.T) {
	t.Parallel()
	for _, user := range []int{0, nobody} {
		t.Run(strconv.Itoa(user), func(t *testing.T) {
			testsupport.NeedRoot(t)
			m := newMachine(t, user)
			o := m.start(t, "exec sleep 1000")
			pid := o.get().PID
			m.killAll(t)
			states, err := filepath.Glob(filepath.Join(m.dir, "supervisor/tasks/*/task.json"))
			must.NoError(t, err)
			must.Len(t, 1, states)
			for _, f := range []string{o.record(), filepath.Join(filepath.Dir(o.record()), "plan.json"), states[0]} {
				must.NoError(t, os.WriteFile(f, []byte("{"), 0o600))
			}
			damaged := endpoint.Ref{Name: o.ref.Name}
			err = m.host().Remove(t.Context(), damaged)
			if user == 0 && cgroup.Detect("").Mode != cgroup.None {
				must.NoError(t, err)
				gone(t, pid)
			} else {
				must.ErrorContains(t, err, "can't be removed, since its program may still run, and the supervisor's state of it")
				must.ErrorContains(t, err, "then remove "+filepath.Dir(states[0])+" there")
				must.NoError(t, unix.Kill(pid, 0))
				kill(t, pid)
			}
			must.NoError(t, os.RemoveAll(filepath.Dir(states[0])))
			must.NoError(t, m.host().Remove(t.Context(), damaged))
			_, err = m.host().Get(t.Context(), o.ref.Name)
			must.ErrorIs(t, err, endpoint.ErrGone)
			must.NoError(t, os.RemoveAll(filepath.Join(m.dir, "supervisor"))) // no supervisor is there to do so
			must.NoError(t, cgroup.LeafBelow(cgroup.Detect(""), shim.CgroupParent(m.dir), "supervisor").Remove())
		})
	}
}

// A shim of a newer version has written what this one does not know.
func TestRecord_KeepsWhatANewerShimWrote(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	o := m.start(t, "exec sleep 1000")
	edit(t, o.record(), func(r map[string]any) { r["from_the_future"] = map[string]any{"a": "b"} })
	_, err := o.h.Take(t.Context(), o.ref, endpoint.Owner{TaskID: "b"})
	must.NoError(t, err)
	b, err := os.ReadFile(o.record())
	must.NoError(t, err)
	must.StrContains(t, string(b), `"from_the_future":{"a":"b"}`)
	must.StrContains(t, string(b), `"epoch":2`)
}

func TestFaults_DiskFullChangesNothing(t *testing.T) {
	t.Parallel()
	testsupport.NeedRoot(t)
	m := newMachine(t, 0)
	must.NoError(t, unix.Mount("tmpfs", m.dir, "tmpfs", 0, "size=1m,mode=0711"))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(m.dir, unix.MNT_DETACH)) })
	running, created, ended := m.start(t, trap), m.object(t), m.start(t, "exit 0")
	_, err := ended.h.Watch(t.Context(), ended.ref)
	must.NoError(t, err)
	must.NoError(t, created.h.Prepare(t.Context(), created.ref, shell("echo x"), nil))
	prepared := m.object(t)
	fill := filepath.Join(m.dir, "full")
	f, err := os.Create(fill)
	must.NoError(t, err)
	for _, size := range []int{64 << 10, 4096, 1} {
		for err = nil; err == nil; _, err = f.Write(make([]byte, size)) {
		}
	}
	must.NoError(t, f.Close())
	must.ErrorIs(t, err, unix.ENOSPC)
	ctx, h := t.Context(), m.host()
	ref := running.ref
	for name, call := range map[string]func() error{
		"create": func() error {
			k := endpoint.Key{Job: "another", Task: "web"}
			return h.Create(ctx, &endpoint.Record{Name: k.Name("0123456789ab"), Key: k})
		},
		"take":    func() error { _, err := h.Take(ctx, ref, endpoint.Owner{TaskID: "b"}); return err },
		"told":    func() error { return h.Renew(ctx, ref, endpoint.Mutable{Told: true}) },
		"renew":   func() error { return h.Renew(ctx, ref, endpoint.Mutable{}) },
		"release": func() error { return h.Release(ctx, ref, endpoint.Mutable{}, "drained") },
		"prepare": func() error { return h.Prepare(ctx, prepared.ref, shell("echo x"), nil) },
		"start":   func() error { _, err := h.Start(ctx, created.ref, shell("echo x")); return err },
		"probe":   func() error { _, err := h.Probe(ctx); return err },
	} {
		err := call()
		test.ErrorContains(t, err, "no space", test.Sprint(name))
		test.False(t, errors.Is(err, endpoint.ErrUnreachable), test.Sprint(name))
	}
	list, err := h.List(ctx)
	must.NoError(t, err)
	must.Len(t, 4, list)
	for _, r := range list {
		test.Eq(t, 1, r.Epoch)
		test.True(t, r.State == endpoint.Starting || r.Name == ref.Name && r.State == endpoint.Running ||
			r.Name == ended.ref.Name && r.State == endpoint.Exited)
	}
	// the exit is told exactly, and is on the disk as soon as there is room
	must.NoError(t, h.Signal(ctx, ref, "SIGUSR1"))
	r, err := h.Watch(ctx, ref)
	must.NoError(t, err)
	must.Eq(t, 7, r.Exit.Code)
	must.NoError(t, h.Remove(ctx, ended.ref))
	must.NoError(t, os.Remove(fill))
	r = running.get()
	must.Eq(t, 7, r.Exit.Code)
	m.killAll(t)
	must.Eq(t, 7, running.get().Exit.Code)
	_, err = m.host().Start(ctx, created.ref, shell("echo x"))
	must.NoError(t, err)
}

// What is on the wire is no text of a person: it is bounded, and refused.
func TestShim_RefusesWhatIsNoCall(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	for _, garbage := range []string{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", strings.Repeat("x", 1<<20), "\x00\x00\x00"} {
		conn, err := m.dial(nil)
		must.NoError(t, err)
		_, _ = conn.Write([]byte(garbage))
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		b := make([]byte, 64<<10)
		for err = nil; err == nil; _, err = conn.Read(b) {
		}
		test.False(t, os.IsTimeout(err), test.Sprintf("%.20q", garbage))
		conn.Close()
	}
	h := m.host()
	for _, name := range []string{"", ".", "..", "../../etc", "a/b", strings.Repeat("a", 300), "-x", "a\x00b"} {
		test.Error(t, h.Create(t.Context(), &endpoint.Record{Name: name, Key: endpoint.Key{Task: "web"}}), test.Sprint(name))
		_, err := h.Get(t.Context(), name)
		test.Error(t, err, test.Sprint(name))
		test.Error(t, h.Remove(t.Context(), endpoint.Ref{Name: name}), test.Sprint(name))
	}
	for _, name := range []string{"", ".", "..", "a/b", "alloc", "record.json", ".x", strings.Repeat("a", 300)} {
		k := endpoint.Key{Task: name}
		test.Error(t, h.Create(t.Context(), &endpoint.Record{Name: k.Name("0123456789ab"), Key: k}), test.Sprint(name))
	}
	list, err := h.List(t.Context())
	must.NoError(t, err)
	must.SliceEmpty(t, list)
}
