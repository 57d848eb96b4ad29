// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"
	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

func TestFaults(t *testing.T) {
	testsupport.Long(t, "kills at each command of zfs-fuse")
	faults.run(t)
}

var faults = cases{
	"killed at a step of create":       killedInCreate,
	"killed at a step of delete":       killedInDelete,
	"killed at a step of a change":     killedInChange,
	"killed at a command":              killedAtCommands,
	"killed at any moment":             killedAtAnyMoment,
	"killed while its program runs on": goesOn,
	"a program hangs":                  hangs,
	"retried with another id":          triedAgain,
	"the record is truncated":          cutOff,
	"others can change the directory":  notOwn,
}

// killed makes a call during which the plugin kills itself at a step.
func (n *node) killed(step, operation string, r request) {
	n.t.Helper()
	r.test = killAt + "=" + step
	must.Eq(n.t, -1, n.call(operation, r).exit, must.Sprintf("it was not killed at %q", step))
}

func killedInCreate(t *testing.T, n *node) {
	n.file(`on_delete = "destroy"`)
	for _, step := range []string{"written", "filled", "owned", "ready"} {
		r := volume("uid", "1234", "mode", "0750")
		n.killed(step, "create", r)
		got := n.create(r)
		must.Eq(t, 32*mib, got.Bytes)
		hasOwner(t, got.Path, 1234, 0, 0o750)
		n.only(r)
		n.delete(r)
		n.only(request{})

		n.killed(step, "create", r)
		n.delete(r)
		n.only(request{})
	}
}

func killedInDelete(t *testing.T, n *node) {
	for _, policy := range []string{"destroy", "trash"} {
		n.file(`on_delete = "` + policy + `"`)
		for _, step := range []string{"unused", "removed"} {
			before := len(n.inTrash())
			r := volume()
			n.create(r)
			n.killed(step, "delete", r)
			if step == "unused" { // an agent that starts before the next delete restores the volume
				n.create(r)
				n.killed(step, "delete", r)
			}
			n.delete(r)
			must.SliceEmpty(t, n.records())
			if policy == "trash" {
				before++
			}
			must.SliceLen(t, before, n.inTrash())
		}
	}
}

func killedInChange(t *testing.T, n *node) {
	r := volume()
	n.create(r)
	next := r
	next.max = 64 * mib
	n.killed("resized", "create", next)
	must.Eq(t, 64*mib, n.create(r).Bytes) // when an agent starts, it repeats the old request: the new size stays
	must.Eq(t, 64*mib, n.create(next).Bytes)
	n.only(next)
}

// killedAtCommands kills the plugin before and after each call of the zfs program.
func killedAtCommands(t *testing.T, n *node) {
	n.exe = testBinary(t)
	dir := t.TempDir()
	set := func(name string, number int) {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(strconv.Itoa(number)), 0o600))
	}
	wrapper := filepath.Join(dir, filepath.Base(n.pool.Program))
	must.NoError(t, os.WriteFile(wrapper, fmt.Appendf(nil, `#!/bin/sh
n=$(($(cat %[1]s/count) + 1))
echo $n > %[1]s/count
if [ $n = $(cat %[1]s/before) ]; then kill -9 $PPID; exit 1; fi
%[2]s "$@"
code=$?
if [ $n = $(cat %[1]s/after) ]; then kill -9 $PPID; fi
exit $code
`, dir, n.pool.Program), 0o755))
	never := func() {
		set("count", 0)
		set("before", 0)
		set("after", 0)
	}
	program := n.pool.Program
	n.pool.Program = wrapper
	defer func() { n.pool.Program = program }()
	for _, c := range []struct{ operation, policy string }{
		{"create", "destroy"}, {"delete", "destroy"}, {"delete", "trash"},
	} {
		n.file(`on_delete = "` + c.policy + `"`)
		for _, when := range []string{"before", "after"} {
			for number := 1; ; number++ {
				r := volume("uid", "1234")
				never()
				if c.operation == "delete" {
					put(t, n.create(r).Path, "a", "text")
				}
				set("count", 0)
				set(when, number)
				got := n.call(c.operation, r)
				never()
				if got.exit == 0 { // the operation has no command with this number
					t.Logf("%s (%s): killed %s each of %d commands", c.operation, c.policy, when, number-1)
					must.True(t, number > 1 || c.policy == "trash")
					n.delete(r)
					break
				}
				must.Less(t, 40, number)
				must.Eq(t, -1, got.exit, must.Sprint(got))
				if c.operation == "create" {
					hasOwner(t, n.create(r).Path, 1234, 0, 0o755)
					n.onlyBesidesTrash(r)
				}
				n.delete(r)
				n.onlyBesidesTrash(request{})
			}
		}
	}
}

// killedAtAnyMoment kills the plugin after different delays, often between two system calls of the engine.
func killedAtAnyMoment(t *testing.T, n *node) {
	n.exe = testBinary(t)
	n.file(`on_delete = "trash"`)
	start := time.Now()
	r := volume("uid", "1234")
	n.create(r)
	whole := time.Since(start)
	n.delete(r)
	killed := map[string]int{}
	moments := 6
	for _, operation := range []string{"create", "delete"} {
		for i := range moments {
			r := volume("uid", "1234")
			if operation == "delete" {
				put(t, n.create(r).Path, "a", r.id)
			}
			r.killed = whole * time.Duration(i+1) / time.Duration(moments)
			if n.call(operation, r).exit == -1 {
				killed[operation]++
			}
			r.killed = 0
			if operation == "create" {
				hasOwner(t, n.create(r).Path, 1234, 0, 0o755)
				n.onlyBesidesTrash(r)
				put(t, n.get(r).Path, "a", r.id)
			}
			n.delete(r)
			trash := n.inTrash() // the trash has the dataset, whenever the plugin was killed
			must.SliceLen(t, 1, trash)
			must.Eq(t, r.id, trash[0].Tags[engine.ID])
			n.onlyBesidesTrash(request{})
		}
	}
	t.Logf("killed: %v of %d each", killed, moments)
	must.Positive(t, killed["create"])
	must.Positive(t, killed["delete"])
}

// stubborn replaces the zfs program with one that creates the dataset of r only when finish is called, even if the
// program is killed before that: the kernel, too, may complete a call of a killed process. The parameter then is a
// shell command that the program runs once it has begun to create the dataset.
func (n *node) stubborn(r request, then string) (finish func()) {
	n.t.Helper()
	dir, program := n.t.(*testing.T).TempDir(), n.pool.Program
	scripts := map[string]string{
		"zfs": `#!/bin/sh
cd %[1]s || exit 1
case "$*" in create*%[3]s)
  if mkdir began 2>/dev/null; then
    (: >works; while [ -e works ]; do sleep 0.02; done; %[2]s "$@"; : >done) &
    %[4]s
    wait
  fi ;;
esac
exec %[2]s "$@"
`,
		// create calls zpool before it searches for the dataset. If zfs is still running, this script lets zfs make the
		// dataset. The search then finds a dataset that only seems complete, and the test fails
		"zpool": `#!/bin/sh
cd %[1]s || exit 1
if [ -e began ]; then
  rm -f works
  until [ -e done ]; do sleep 0.02; done
fi
`,
	}
	for name, script := range scripts {
		text := fmt.Appendf(nil, script, dir, program, r.id, then)
		must.NoError(n.t, os.WriteFile(filepath.Join(dir, name), text, 0o755))
	}
	n.pool.Program = filepath.Join(dir, "zfs")
	n.file(`on_delete = "destroy"`)
	n.t.Cleanup(func() { n.pool.Program = program })
	return func() {
		n.t.Helper()
		must.NoError(n.t, os.Remove(filepath.Join(dir, "works")))
		testsupport.Eventually(n.t, "the command is done", func() bool {
			return testsupport.Exists(filepath.Join(dir, "done"))
		})
	}
}

// A create is killed, but its command makes the dataset later. The next create must not use that incomplete dataset.
func goesOn(t *testing.T, n *node) {
	for _, operation := range []string{"create", "delete"} {
		r := volume("uid", "1234", "mode", "0750")
		finish := n.stubborn(r, "kill -9 $PPID")
		n.killed("no step", "create", r)
		whole := limit
		limit = 2 * time.Second
		got := n.call(operation, r)
		limit = whole
		if operation == "create" && got.exit == 0 {
			hasOwner(t, got.Path, 1234, 0, 0o750)
		}
		must.StrContains(t, got.Error, "is being changed by another process")
		finish()
		if operation == "create" {
			hasOwner(t, n.create(r).Path, 1234, 0, 0o750)
			n.only(r)
		}
		n.delete(r)
		n.only(request{})
	}
}

// A create that gives up on a hanging program keeps its record: the next create removes the dataset if it appears.
func hangs(t *testing.T, n *node) {
	r := volume()
	finish := n.stubborn(r, "")
	env := n.environment("create", r)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	lookup := func(name string) (string, bool) { return lookup(env, name) }
	err := run(ctx, lookup, nil, io.Discard)
	must.ErrorIs(t, err, engine.ErrUnavailable)
	finish()
	_, unlock, err := locks.Lock(t.Context(), r.id, time.Minute)
	must.NoError(t, err)
	unlock()
	other := volume()
	n.create(other)
	n.only(other)
}

// A create hangs beyond its timeout. If the timeout answers first, the create removes the volume; if the create answers
// first, the volume stays.
func wakesUp(t *testing.T, n *node) {
	n.file(`on_delete = "destroy"`)
	formerAt, formerLate := at, late
	defer func() { at, late = formerAt, formerLate }()
	for step, exit := range map[string]int{"owned": 1, "ready": 0} {
		fired, answered := make(chan time.Time), make(chan struct{})
		late = func() <-chan time.Time { return fired }
		hang := map[int]time.Duration{0: 200 * time.Millisecond, 1: time.Minute}[exit]
		at = func(now string) {
			if now != step {
				return
			}
			fired <- time.Now()
			select {
			case <-answered:
			case <-time.After(hang):
			}
		}
		r := volume()
		got := n.call("create", r)
		late = formerLate
		close(answered)
		must.Eq(t, exit, got.exit, must.Sprint(got.Error))
		if exit == 0 {
			n.only(r)
			n.delete(r)
			continue
		}
		must.StrContains(t, got.Error, "the file system hangs")
		testsupport.Eventually(t, "the volume is removed", func() bool { return len(n.records()) == 0 })
		n.only(request{})
	}
}

// onlyBesidesTrash empties the trash, and then makes the same checks as the method only.
func (n *node) onlyBesidesTrash(r request) {
	n.t.Helper()
	for _, d := range n.inTrash() {
		must.NoError(n.t, n.engine("dir").Destroy(n.t.Context(), d.Name))
	}
	n.only(r)
}

// Nomad retries a create with another id, and never uses the first id again.
func triedAgain(t *testing.T, n *node) {
	for _, step := range []string{"written", "filled", "owned"} {
		n.killed(step, "create", volume())
	}
	r := volume()
	n.create(r)
	n.only(r)
}

// If the agent dies during a create, nobody reads the answer. The volume is then removed unless it existed before.
func unread(t *testing.T, n *node) {
	call := func(r request) {
		t.Helper()
		reader, stdout, err := os.Pipe()
		must.NoError(t, err)
		defer stdout.Close()
		must.NoError(t, reader.Close())
		must.Eq(t, 1, n.process(testBinary(t), r, "create", n.environment("create", r), stdout, stdout))
	}
	call(volume())
	n.only(request{})

	name := n.brought("key")
	call(volume("adopt", "key"))
	must.Eq(t, []string{name}, n.names())
	must.SliceEmpty(t, n.records())

	r := volume("adopt", "key")
	n.create(r)
	call(r)
	has(t, n.create(r).Path, "a", "text")
	n.only(r)
}

func cutOff(t *testing.T, n *node) {
	r := volume()
	n.killed("written", "create", r)
	for _, id := range []string{r.id, volume().id} { // a kill during the write of a record leaves such a file
		must.NoError(t, os.WriteFile(filepath.Join(n.volumes, ".outrider", id+".tmp"), []byte("{"), 0o600))
	}
	n.create(r)
	n.only(r)
	must.NoError(t, os.Truncate(filepath.Join(n.volumes, ".outrider", r.id+".json"), 10))
	n.refused("create", r, "failed to parse the record")
	n.refused("delete", r, "failed to parse the record")
}

func notOwn(t *testing.T, n *node) {
	r := volume()
	n.create(r)
	dir := filepath.Join(n.volumes, ".outrider")
	must.NoError(t, os.Chmod(dir, 0o777))
	n.refused("create", r, "other users may write to "+dir)
	must.NoError(t, os.Chmod(dir, 0o700))
	must.NoError(t, os.Rename(dir, dir+"x"))
	must.NoError(t, os.Symlink(t.TempDir(), dir)) // links are refused unless they are root's
	must.NoError(t, os.Lchown(dir, 65534, 65534))
	n.refused("create", r, "belongs to user 65534")
	must.NoError(t, os.Remove(dir))
	must.NoError(t, os.Rename(dir+"x", dir))
	n.create(r)
}

func TestPool(t *testing.T) {
	pool := zfsfusetest.Small(t)
	for name, fault := range unusable {
		t.Run(name, func(t *testing.T) { away(t, newNode(t, pool), name != "read-only", fault) })
	}
	t.Run("full", func(t *testing.T) { fullPool(t, newNode(t, pool)) })
}

// fault has a command that makes a pool unavailable or read-only, and a command that restores the pool.
type fault struct{ away, back []string }

var unusable = map[string]fault{
	"exported": {
		[]string{"zpool", "export", "POOL"}, []string{"zpool", "import", "-o", "cachefile=none", "-d", "DIR", "POOL"},
	},
	"read-only": {[]string{"zfs", "set", "readonly=on", "POOL"}, []string{"zfs", "inherit", "readonly", "POOL"}},
}

// No volume can be created while the pool is unavailable or read-only. When the pool is back, no data is missing.
func away(t *testing.T, n *node, gone bool, f fault) {
	root := filepath.Dir(n.pool.Root)
	status, err := exec.Command("zpool", "status", root).Output()
	must.NoError(t, err)
	dir := strings.TrimSuffix(regexp.MustCompile(`/\S+/image`).FindString(string(status)), "/image")
	command := func(args []string) {
		t.Helper()
		args = slices.Clone(args)
		for i := range args {
			args[i] = strings.NewReplacer("POOL", root, "DIR", dir).Replace(args[i])
		}
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
	}
	r := volume()
	path := n.create(r).Path
	put(t, path, "a", "text")
	command(f.away)
	refused := func(operation string, r request) {
		t.Helper()
		got := n.call(operation, r)
		must.Eq(t, 1, got.exit)
		must.StrNotContains(t, got.Error, "\n")
		t.Log(got.Error)
	}
	refused("create", volume())
	if gone { // on a read-only pool, delete can succeed, because it only renames the dataset
		refused("delete", r)
	}
	if got := n.call("create", r); gone {
		must.Eq(t, 1, got.exit)
		must.StrNotContains(t, got.Error, "\n")
		entries, _ := os.ReadDir(path)
		must.SliceEmpty(t, entries) // without the pool, nothing was written to the directory
	} else {
		must.Eq(t, "", got.Error)
		has(t, got.Path, "a", "text")
	}
	command(f.back)
	must.Eq(t, path, n.create(r).Path)
	has(t, path, "a", "text")
	n.only(r)
}

// A volume in a full pool is restored, and a new volume is complete or does not exist.
func fullPool(t *testing.T, n *node) {
	n.write(n.class("dir", `max_capacity = "2GiB"`) + n.class("other", ""))
	r := volume()
	r.max = 2048 * mib
	path := n.create(r).Path
	put(t, path, "a", "text")
	err := fill(t, path, 2048)
	must.True(t, errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT), must.Sprint(err))
	has(t, n.create(r).Path, "a", "text")
	s := volume()
	if got := n.call("create", s); got.exit == 0 {
		t.Log("a new volume has room for its directory")
		n.delete(s)
	} else {
		t.Log(got.Error)
		must.StrNotContains(t, got.Error, "\n")
		n.only(r)
	}
	must.NoError(t, os.Truncate(filepath.Join(path, "fill"), 0))
	testsupport.Within(t, time.Minute, func() error { // zfs-fuse frees the space with a delay
		if got := n.call("delete", r); got.exit != 0 {
			return errors.New(got.Error)
		}
		return nil
	})
}

// When an agent starts, Nomad calls create for all volumes of the node concurrently, and waits 50 s.
func TestRestore_MeetsNomadsTimeLimitWithManyVolumes(t *testing.T) {
	testsupport.Long(t, "hundreds of volumes")
	n := newNode(t, zfsfusetest.New(t))
	n.exe = testBinary(t)
	// together calls the plugin for all volumes concurrently
	together := func(all []request) {
		var wg sync.WaitGroup
		for _, r := range all {
			wg.Go(func() {
				if got := n.call("create", r); got.exit != 0 {
					t.Error(got.Error)
				}
			})
		}
		wg.Wait()
	}
	var all []request
	for _, count := range []int{50, 100, 200} {
		for len(all) < count {
			more := make([]request, 10)
			for i := range more {
				more[i] = volume()
				more[i].max = 16 * mib
			}
			together(more)
			all = append(all, more...)
		}
		var dirs []string
		for _, r := range all {
			dirs = append(dirs, filepath.Join(n.volumes, r.id))
		}
		zfsfusetest.Unmount(t, dirs...) // after a boot nothing is mounted
		start := time.Now()
		together(all)
		took := time.Since(start)
		t.Logf("%d volumes: %v", count, took)
		must.Less(t, 50*time.Second, took)
	}
}
