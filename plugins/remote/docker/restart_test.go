// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/docker"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// An engine is killed while objects are in each state, and started again. Podman's containers run on. Docker kills
// those that run when it starts, without live-restore, and tells so.
func TestEngine_IsKilledInEachState(t *testing.T) {
	for name, start := range map[string]func() (*engine, error){"docker": ownDocker, "podman": podmanEngine} {
		t.Run(name, func(t *testing.T) { onOwn(t, start, killEngine) })
	}
}

func killEngine(t *testing.T, e *engine) {
	ctx, c, dir := t.Context(), e.connect(t), t.TempDir()
	objects := map[string]*endpoint.Record{}
	add := func(t *testing.T) { objects[filepath.Base(t.Name())] = object(t, e) }
	for _, name := range []string{"created", "prepared", "running", "released", "ends", "ended"} {
		t.Run(name, add) // its name is part of the object's; its clean-up finds nothing
	}
	ref := func(name string) endpoint.Ref { return endpoint.Ref{Name: objects[name].Name, Epoch: 1} }
	long, short := shell("exec sleep 1000"), shell("while [ ! -e /c/go ]; do sleep 0.05; done; exit 7")
	short.Container.Mounts = []endpoint.ContainerMount{{Type: "bind", Source: dir, Target: "/c"}}
	must.NoError(t, c.Create(ctx, objects["created"]))
	must.NoError(t, c.Create(ctx, objects["prepared"]))
	must.NoError(t, c.Prepare(ctx, ref("prepared"), long, func(string) {}))
	running := start(t, c, objects["running"], long)
	released := start(t, c, objects["released"], long)
	must.NoError(t, c.Release(ctx, released.Ref(), endpoint.Mutable{}, "drained"))
	start(t, c, objects["ends"], short)
	start(t, c, objects["ended"], shell("exit 8"))
	_, err := c.Watch(ctx, ref("ended"))
	must.NoError(t, err)
	watched := make(chan error, 1)
	go func() {
		_, err := c.Watch(ctx, ref("ends"))
		watched <- err
	}()

	must.NoError(t, os.WriteFile(filepath.Join(e.dir, "again"), nil, 0o600))
	e.kill(syscall.SIGKILL)
	must.True(t, unreachable(<-watched))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	must.NoError(t, e.answers())

	get := func(name string) *endpoint.Record {
		t.Helper()
		r, err := c.Get(ctx, objects[name].Name)
		must.NoError(t, err)
		return r
	}
	must.Eq(t, endpoint.Starting, get("created").State)
	must.Eq(t, endpoint.Starting, get("prepared").State)
	for _, name := range []string{"created", "prepared"} {
		must.NoError(t, c.Prepare(ctx, ref(name), long, func(string) {}))
		r, err := c.Start(ctx, ref(name), long)
		must.NoError(t, err)
		must.Eq(t, endpoint.Running, r.State)
	}
	must.Eq(t, 8, get("ended").Exit.Code)
	w, err := c.Watch(ctx, ref("ends"))
	must.NoError(t, err)
	must.Eq(t, 7, w.Exit.Code, must.Sprintf("%+v", w.Exit))
	if e.name == "podman" {
		must.Eq(t, running.PID, get("running").PID)
		must.Eq(t, endpoint.Running, get("running").State)
		must.Eq(t, released.PID, get("released").PID)
		must.Eq(t, endpoint.Released, get("released").State)
	} else {
		for _, name := range []string{"running", "released"} {
			r := get(name)
			must.Eq(t, endpoint.Exited, r.State)
			must.Eq(t, 9, r.Exit.Signal, must.Sprintf("%+v", r.Exit))
		}
	}
	for name := range objects {
		end(t, c, get(name))
	}
}

// end takes an object over, stops and removes it.
func end(t *testing.T, c *docker.Endpoint, r *endpoint.Record) {
	t.Helper()
	r, err := c.Take(t.Context(), r.Ref(), owner("end"))
	must.NoError(t, err)
	_, err = c.Stop(t.Context(), r.Ref(), "SIGKILL", 0, "over")
	must.NoError(t, err)
	must.NoError(t, c.Remove(t.Context(), r.Ref()))
}

// rebooted is what a crash of its host leaves of an engine, when its processes are gone: nothing is mounted, and there
// is no state of what ran.
const rebooted = `while [ ! -e crashed ]; do sleep 0.05; done
awk '{print $5}' /proc/self/mountinfo | grep "^$PWD/" | sort -r | while read -r m; do umount -l "$m"; done
rm -rf crashed exec run tmp
`

// The host of an engine crashes. The engine does not know how a program has ended that ran then.
func TestEngine_LosesWhatItsHostLoses(t *testing.T) {
	for name, start := range map[string]func() (*engine, error){"docker": ownDocker, "podman": podmanEngine} {
		t.Run(name, func(t *testing.T) { onOwn(t, start, crashHost) })
	}
}

func crashHost(t *testing.T, e *engine) {
	ctx, c := t.Context(), e.connect(t)
	running := start(t, c, object(t, e), shell("exec sleep 1000"))

	must.NoError(t, os.WriteFile(filepath.Join(e.dir, "again"), []byte(rebooted), 0o600))
	e.kill(syscall.SIGKILL)
	must.NoError(t, e.killProgram(running.PID))
	must.NoError(t, os.WriteFile(filepath.Join(e.dir, "crashed"), nil, 0o600))
	must.NoError(t, e.answers())

	r, err := c.Get(ctx, running.Name)
	must.NoError(t, err)
	must.Eq(t, endpoint.Exited, r.State)
	must.True(t, r.Exit.Lost, must.Sprintf("%+v", r.Exit))
	end(t, c, r)
}

// The disk of an engine is full. What runs is found, stopped and told; what would start is refused. All goes on when
// there is space again.
func TestEngine_HasNoSpace(t *testing.T) { onOwn(t, smallDocker, noSpace) }

func noSpace(t *testing.T, e *engine) {
	ctx, c, dir := t.Context(), e.connect(t), t.TempDir()
	objects := map[string]*endpoint.Record{}
	for _, name := range []string{"runs", "ends", "stops", "prepared", "new"} {
		t.Run(name, func(t *testing.T) { objects[name] = object(t, e) })
	}
	long, short := shell("exec sleep 1000"), shell("while [ ! -e /c/go ]; do sleep 0.05; done; exit 7")
	short.Container.Mounts = []endpoint.ContainerMount{{Type: "bind", Source: dir, Target: "/c"}}
	runs, stops := start(t, c, objects["runs"], long), start(t, c, objects["stops"], long)
	ends := start(t, c, objects["ends"], short)
	must.NoError(t, c.Create(ctx, objects["prepared"]))
	prepared := endpoint.Ref{Name: objects["prepared"].Name, Epoch: 1}
	must.NoError(t, c.Prepare(ctx, prepared, long, func(string) {}))

	filler := fmt.Sprintf("/proc/%d/root/%s/data/filler", e.pid, e.dir)
	f, err := os.Create(filler)
	must.NoError(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	must.ErrorIs(t, err, syscall.ENOSPC)
	must.NoError(t, f.Close())

	full := func(err error) {
		t.Helper()
		must.ErrorContains(t, err, "no space left on device")
		must.StrNotContains(t, err.Error(), "\n")
	}
	if err := c.Renew(ctx, runs.Ref(), endpoint.Mutable{}); err != nil { // its file of volumes may have space in it
		full(err)
	}
	full(c.Create(ctx, objects["new"]))
	_, err = c.Start(ctx, prepared, long)
	full(err)
	must.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	ended, err := c.Watch(ctx, ends.Ref())
	must.NoError(t, err)
	must.Eq(t, 7, ended.Exit.Code, must.Sprintf("%+v", ended.Exit))
	stopped, err := c.Stop(ctx, stops.Ref(), "SIGKILL", 0, "over")
	must.NoError(t, err)
	must.Eq(t, 9, stopped.Exit.Signal, must.Sprintf("%+v", stopped.Exit))
	seen, err := c.Get(ctx, runs.Name)
	must.NoError(t, err)
	must.Eq(t, endpoint.Running, seen.State)

	must.NoError(t, os.Remove(filler))
	must.NoError(t, c.Renew(ctx, runs.Ref(), endpoint.Mutable{}))
	seen, err = c.Get(ctx, runs.Name)
	must.NoError(t, err)
	must.Eq(t, runs.PID, seen.PID)
	must.NoError(t, c.Prepare(ctx, prepared, long, func(string) {}))
	seen, err = c.Start(ctx, prepared, long)
	must.NoError(t, err)
	must.Eq(t, endpoint.Running, seen.State)
	start(t, c, objects["new"], long)
	for name := range objects {
		seen, err := c.Get(ctx, objects[name].Name)
		must.NoError(t, err)
		end(t, c, seen)
	}
}
