// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package endpointtest

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// The rows on what an object runs.
func init() {
	rows = append(rows,
		row{"a program is started once", nil, startOnce},
		row{"a program that does not exist is told", nil, missing},
		row{"an exit is told as it was", nil, exits},
		row{"a lack of memory is told", func(c Column) bool { return c.Memory }, oom},
		row{"an unknown exit is told as lost", func(c Column) bool { return c.Lose != nil }, loses},
		row{"words stand for directories", nil, words},
		row{"files are put, and put again", nil, puts},
		row{"files stay in their directories", nil, putsOutside},
		row{"a put ends with its owner", nil, putIsFenced},
		row{"files belong to the task's user", func(c Column) bool { return c.User != "" }, putsForUser},
		row{"a stop has its grace", nil, stops},
		row{"a stop signal reaches all processes", func(c Column) bool { return c.KillModes }, stopsAll},
		row{"nobody's stop goes on after a takeover", nil, stopIsFenced},
		row{"a signal reaches the program", nil, signals},
		row{"usage is measured", nil, usage},
	)
}

func startOnce(x *run) {
	ref, s := x.object(), x.Column.Shell("echo once; exec sleep 1000")
	_, err := x.e().Start(x.context(), ref, s)
	must.ErrorIs(x, err, endpoint.ErrUnprepared)
	must.NoError(x, x.e().Prepare(x.context(), ref, s, func(string) {}))
	other := x.connect()
	errs := together(racers, func(i int) error {
		e := x.e()
		if i%2 == 1 {
			e = other
		}
		r, err := e.Start(x.context(), ref, s)
		if err == nil && r.State != endpoint.Running {
			err = errors.New(sprint(r))
		}
		return err
	})
	for _, err := range errs {
		must.NoError(x, err)
	}
	r, err := x.e().Take(x.context(), ref, owner("b"))
	must.NoError(x, err)
	must.NoError(x, x.e().Prepare(x.context(), r.Ref(), s, func(string) {})) // no effect
	again, err := x.e().Start(x.context(), r.Ref(), s)
	must.NoError(x, err)
	must.Eq(x, r.PID, again.PID)
	r, err = x.e().Stop(x.context(), r.Ref(), "SIGKILL", 0, "stopped")
	must.NoError(x, err)
	after, err := x.e().Start(x.context(), r.Ref(), s)
	must.NoError(x, err)
	must.Eq(x, endpoint.Exited, after.State)
	out, _ := x.output(ref.Name, "stdout", endpoint.Place{}, 0)
	must.Eq(x, "once\n", out)
}

func missing(x *run) {
	ref := x.object()
	err := x.e().Prepare(x.context(), ref, x.Missing, func(string) {})
	if err == nil {
		_, err = x.e().Start(x.context(), ref, x.Missing)
	}
	must.Error(x, err)
	must.False(x, errors.Is(err, endpoint.ErrUnreachable), must.Sprint(err))
	must.False(x, strings.Contains(err.Error(), "\n"), must.Sprint(err))
	must.NoError(x, x.e().Remove(x.context(), ref))
}

func exits(x *run) {
	for script, code := range map[string]int{"exit 0": 0, "exit 7": 7, "exit 255": 255} {
		r := x.exited(x.shell(script))
		test.Eq(x, code, r.Exit.Code, test.Sprint(script))
		test.Eq(x, 0, r.Exit.Signal, test.Sprint(script))
		test.False(x, r.Exit.Lost || r.Exit.OOMKilled, test.Sprint(script))
		test.False(x, r.Told, test.Sprint(script))
	}
	ref := x.shell("exec sleep 1000")
	must.NoError(x, x.e().Signal(x.context(), ref, "SIGKILL"))
	r := x.exited(ref)
	must.True(x, r.Exit.Signal == 9 || r.Exit.Code == 137, must.Sprint(sprint(r)))
	must.False(x, r.Exit.Lost || r.Exit.OOMKilled)
}

func oom(x *run) {
	s := x.Column.Shell("x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}")
	s.Resources.Memory = 20 << 20
	r := x.exited(x.start(s))
	must.True(x, r.Exit.OOMKilled, must.Sprint(sprint(r)))
	must.True(x, r.Exit.Code != 0 || r.Exit.Signal != 0)
}

func loses(x *run) {
	ref := x.shell("exec sleep 1000")
	x.Column.Lose(x, x.get(ref.Name))
	r := x.exited(ref)
	must.True(x, r.Exit.Lost, must.Sprint(sprint(r)))
	must.NotEq(x, "", r.Exit.Reason)
	must.NoError(x, x.e().Remove(x.context(), r.Ref()))
}

func words(x *run) {
	s := x.Column.Shell("echo $D; cd $L && cd $S && cd $A/data && cd " + endpoint.DirTask +
		"/local && pwd; echo x > f && cat f")
	s.Env["D"], s.Env["L"] = "a"+endpoint.DirTask+"b", endpoint.DirLocal
	s.Env["S"], s.Env["A"] = endpoint.DirSecrets, endpoint.DirAlloc
	ref := x.start(s)
	r := x.exited(ref)
	out, _ := x.output(ref.Name, "stdout", endpoint.Place{}, 0)
	errs, _ := x.output(ref.Name, "stderr", endpoint.Place{}, 0)
	must.Eq(x, 0, r.Exit.Code, must.Sprint(out, errs))
	lines := strings.Split(out, "\n")
	must.Eq(x, 4, len(lines), must.Sprint(out))
	dir := strings.TrimSuffix(strings.TrimPrefix(lines[0], "a"), "b")
	must.Eq(x, path.Join(dir, "local"), lines[1]) // in a container it may be /
	must.False(x, strings.Contains(out, "${"), must.Sprint(out))
}

func puts(x *run) {
	ref, s := x.object(), x.Column.Shell("cd "+endpoint.DirTask+
		"; cat local/sub/f secrets/s "+endpoint.DirAlloc+"/data/d; ./local/run; echo ready; exec sleep 1000")
	must.NoError(x, x.e().Prepare(x.context(), ref, s, func(string) {}))
	must.NoError(x, x.e().Put(x.context(), ref, archive(x,
		file{name: "local/sub", mode: 0o755, typ: tar.TypeDir}, file{name: "local/sub/f", text: "one\n", mode: 0o644},
		file{name: "secrets/s", text: "two\n", mode: 0o600}, file{name: "data/deep/er/x", text: "x", mode: 0o600},
		file{name: "data/d", text: "three\n", mode: 0o600},
		file{name: "local/run", text: "#!/bin/sh\necho four\n", mode: 0o755},
	)))
	_, err := x.e().Start(x.context(), ref, s)
	must.NoError(x, err)
	x.says(ref.Name, "one\ntwo\nthree\nfour\nready\n")
	must.NoError(x, x.e().Put(x.context(), ref, archive(x,
		file{name: "local/sub/f", text: "new", mode: 0o644}, file{name: "secrets/t", text: "more", mode: 0o600})))
	out, code := x.exec(ref, "cd "+x.dir(ref)+"; cat local/sub/f secrets/s secrets/t; ls -ld secrets/s | cut -c1-10")
	must.Eq(x, 0, code, must.Sprint(out))
	must.Eq(x, "newtwo\nmore-rw-------\n", out)
}

// dir is the directory of the task, as commands in it see it.
func (x *run) dir(ref endpoint.Ref) string {
	x.Helper()
	out, _ := x.exec(ref, `echo "$TASK_DIR"`)
	must.StrHasPrefix(x, "/", out, must.Sprint("the task's environment has no TASK_DIR"))
	return strings.TrimSpace(out)
}

func putsOutside(x *run) {
	ref, s := x.object(), x.Column.Shell("exec sleep 1000")
	must.NoError(x, x.e().Prepare(x.context(), ref, s, func(string) {}))
	for _, f := range []file{
		{name: "../f", text: "x"}, {name: "/etc/f", text: "x"}, {name: "local/../../f", text: "x"},
		{name: "other/f", text: "x"}, {name: "f", text: "x"}, {name: "local/fifo", typ: tar.TypeFifo},
		{name: "local/dev", typ: tar.TypeBlock},
	} {
		test.Error(x, x.e().Put(x.context(), ref, archive(x, f)), test.Sprint(f.name))
	}
	// a link that leads out is a link, and nothing is written through it
	err := x.e().Put(x.context(), ref, archive(x, file{name: "local/out", text: "/etc", typ: tar.TypeSymlink},
		file{name: "local/out/outrider-was-here", text: "x"}))
	test.Error(x, err)
	broken := io.MultiReader(io.LimitReader(archive(x, file{name: "local/half", text: strings.Repeat("x", 5000)}), 3000),
		failing{})
	test.Error(x, x.e().Put(x.context(), ref, broken))
	_, err = x.e().Start(x.context(), ref, s)
	must.NoError(x, err)
	out, _ := x.exec(ref, "cd "+x.dir(ref)+"; ls local secrets; test -e /etc/outrider-was-here && echo escaped")
	must.False(x, strings.Contains(out, "escaped") || strings.Contains(out, "half"), must.Sprint(out))
}

// A node hangs in the middle of a file: it holds nobody up, and has lost the task when it goes on.
func putIsFenced(x *run) {
	ref := x.shell("exec sleep 1000")
	late, text := archive(x, file{name: "local/f", text: strings.Repeat("old owner's", 1000)}), make([]byte, 4096)
	_, err := io.ReadFull(late, text)
	must.NoError(x, err)
	r, w := io.Pipe()
	done, e, ctx := make(chan error, 1), x.connect(), x.context()
	go func() { done <- e.Put(ctx, ref, r) }()
	_, err = w.Write(text)
	must.NoError(x, err)
	time.Sleep(200 * time.Millisecond) // what was read is sent, if it is sent before the rest is read
	taken, err := x.e().Take(x.context(), ref, owner("b"))
	must.NoError(x, err)
	must.NoError(x, x.e().Put(x.context(), taken.Ref(), archive(x, file{name: "local/f", text: "new", mode: 0o644})))
	_, err = io.Copy(w, late)
	must.NoError(x, err)
	must.NoError(x, w.Close())
	must.ErrorIs(x, <-done, endpoint.ErrEpoch)
	out, code := x.exec(taken.Ref(), "cd "+x.dir(taken.Ref())+"; cat local/f")
	must.Eq(x, 0, code)
	must.Eq(x, "new", out)
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("the files are gone") }

func putsForUser(x *run) {
	s := x.Column.Shell("cd " + endpoint.DirTask +
		"; id -u; cat secrets/s; echo x > local/mine; echo x > $A/data/mine; exec sleep 1000")
	s.Env["A"] = endpoint.DirAlloc
	s.User = x.Column.User
	ref := x.object()
	must.NoError(x, x.e().Prepare(x.context(), ref, s, func(string) {}))
	secret := file{name: "secrets/s", text: "secret\n", mode: 0o600}
	must.NoError(x, x.e().Put(x.context(), ref, archive(x, secret)))
	_, err := x.e().Start(x.context(), ref, s)
	must.NoError(x, err)
	x.says(ref.Name, x.Column.User+"\nsecret\n")
	must.NoError(x, x.e().Put(x.context(), ref, archive(x, secret, file{name: "local/d/new", text: "x", mode: 0o600})))
	out, code := x.exec(ref, "cd "+x.dir(ref)+"; cat secrets/s local/d/new && echo y > local/d/more && ls local")
	must.Eq(x, 0, code, must.Sprint(out))
	must.Eq(x, "secret\nxd\nmine\n", out)
}

const loop = "while :; do sleep 0.05; done"

func stops(x *run) {
	ref := x.shell("trap 'echo bye; exit 3' TERM; echo ready; " + loop)
	x.says(ref.Name, "ready\n")
	r, err := x.e().Stop(x.context(), ref, "SIGTERM", limit, "stopped")
	must.NoError(x, err)
	must.Eq(x, 3, r.Exit.Code)
	out, _ := x.output(ref.Name, "stdout", endpoint.Place{}, 0)
	must.Eq(x, "ready\nbye\n", out)

	ref = x.shell("trap '' TERM; (trap '' TERM; " + loop + ") & echo ready; " + loop)
	x.says(ref.Name, "ready\n")
	began := time.Now()
	r, err = x.e().Stop(x.context(), ref, "SIGTERM", 300*time.Millisecond, "stopped")
	must.NoError(x, err)
	must.True(x, r.Exit.Signal == 9 || r.Exit.Code == 137, must.Sprint(sprint(r)))
	must.Between(x, 300*time.Millisecond, time.Since(began), limit/2)
}

func stopsAll(x *run) {
	s := x.Column.Shell("setsid sh -c \"trap 'sleep 0.5; echo child; exit' USR1; echo r; " + loop +
		"\" & trap 'exit 4' USR1; echo r; " + loop)
	s.Process.Mode = "all"
	ref := x.start(s)
	x.says(ref.Name, "r\nr\n")
	watched, other, ctx := make(chan error, 1), x.connect(), x.context()
	go func() { // who sees the main process end leaves the rest its time
		_, err := other.Watch(ctx, ref)
		watched <- err
	}()
	time.Sleep(200 * time.Millisecond)
	r, err := x.e().Stop(x.context(), ref, "SIGUSR1", limit/2, "stopped")
	must.NoError(x, err)
	must.Eq(x, 4, r.Exit.Code)
	must.NoError(x, <-watched)
	out, _ := x.output(ref.Name, "stdout", endpoint.Place{}, 0)
	must.Eq(x, "r\nr\nchild\n", out)
}

func stopIsFenced(x *run) {
	ref := x.shell("trap 'echo trapped' TERM; echo ready; " + loop)
	x.says(ref.Name, "ready\n")
	done, e, ctx := make(chan error, 1), x.connect(), x.context()
	go func() {
		_, err := e.Stop(ctx, ref, "SIGTERM", 3*time.Second, "late")
		done <- err
	}()
	x.says(ref.Name, "trapped\n")
	r, err := x.e().Take(x.context(), ref, owner("b"))
	must.NoError(x, err)
	must.ErrorIs(x, <-done, endpoint.ErrEpoch)
	time.Sleep(100 * time.Millisecond)
	must.Eq(x, endpoint.Running, x.get(ref.Name).State)
	_, code := x.exec(r.Ref(), "true")
	must.Eq(x, 0, code)
}

func signals(x *run) {
	ref := x.shell("trap 'echo hup' HUP; trap 'echo usr2; exit 0' USR2; echo ready; " + loop)
	x.says(ref.Name, "ready\n")
	must.Error(x, x.e().Signal(x.context(), ref, "SIGNONSENSE"))
	must.NoError(x, x.e().Signal(x.context(), ref, "SIGHUP"))
	x.says(ref.Name, "hup\n")
	must.NoError(x, x.e().Signal(x.context(), ref, "SIGUSR2"))
	x.exited(ref)
	must.Error(x, x.e().Signal(x.context(), ref, "SIGHUP"), must.Sprint("of one that has ended"))
}

func usage(x *run) {
	ref := x.shell("echo ready; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo done; exec sleep 1000")
	x.says(ref.Name, "done\n")
	x.within(func() error {
		u, err := x.e().Stats(x.context(), ref.Name)
		if err != nil {
			return err
		}
		if u.CPU < 0.01 || u.Memory <= 0 || u.Processes < 1 || u.At == 0 {
			return fmt.Errorf("%+v", u)
		}
		return nil
	})
	_, err := x.e().Stop(x.context(), ref, "SIGKILL", 0, "stopped")
	must.NoError(x, err)
	ctx, cancel := context.WithTimeout(x.T.Context(), limit)
	defer cancel()
	_, err = x.e().Stats(ctx, ref.Name)
	must.ErrorIs(x, err, endpoint.ErrGone)
}
