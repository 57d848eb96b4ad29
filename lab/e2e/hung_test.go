// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// FIFREEZE and FITHAW of linux/fs.h: who writes to a frozen disk waits for the thaw,
// and can't be killed.
const (
	fiFreeze = 0xC0045877
	fiThaw   = 0xC0045878
)

// disk is one of the test's own, mounted in the place of a directory.
type disk struct {
	t   *testing.T
	dir string
	fd  *os.File
}

func mountDisk(t *testing.T, dir string) *disk {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	must.NoError(t, os.WriteFile(image, nil, 0o600))
	must.NoError(t, os.Truncate(image, 64<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", image).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
	if out, err := exec.Command("mount", "-o", "loop", image, dir).CombinedOutput(); err != nil {
		t.Skipf("no loop device here: %v: %s", err, out)
	}
	d := &disk{t: t, dir: dir}
	t.Cleanup(func() {
		d.thaw()
		d.fd.Close()
		testsupport.Within(t, time.Minute, func() error { return unix.Unmount(dir, 0) })
	})
	var err error
	if d.fd, err = os.Open(dir); err != nil {
		t.Fatal(err)
	}
	must.NoError(t, d.fd.Chmod(0o777))
	return d
}

func (d *disk) freeze() {
	d.t.Helper()
	if err := unix.IoctlSetInt(int(d.fd.Fd()), fiFreeze, 0); err != nil {
		d.t.Fatal("freeze: ", err)
	}
}

func (d *disk) thaw() {
	if err := unix.IoctlSetInt(int(d.fd.Fd()), fiThaw, 0); err != nil && !errors.Is(err, unix.EINVAL) { // not frozen
		d.t.Error("thaw: ", err)
	}
}

// gated starts a task whose log directory is prepared before the task starts.
func gated(t *testing.T, n *node, c conf, prepare func(logs string)) *alloc {
	t.Helper()
	j := job(t, c)
	gate := api.NewTask("gate", n.driver)
	gate.Lifecycle = &api.TaskLifecycle{Hook: api.TaskLifecycleHookPrestart}
	gate.Config = sh(`until [ -e $NOMAD_ALLOC_DIR/go ]; do sleep 0.1; done`)
	gate.Resources, gate.LogConfig = j.TaskGroups[0].Tasks[0].Resources, j.TaskGroups[0].Tasks[0].LogConfig
	j.TaskGroups[0].AddTask(gate)
	a := n.submit(t, j)
	shared := filepath.Join(a.dir(), "alloc")
	testsupport.Within(t, time.Minute, func() error {
		_, err := os.Stat(filepath.Join(shared, "logs", "gate.stdout.0"))
		return err
	})
	prepare(filepath.Join(shared, "logs"))
	touch(t, filepath.Join(shared, "go"))
	return a
}

// twenty runs tasks that have nothing to do with what hangs, and returns how long they took.
func twenty(t *testing.T, n *node) time.Duration {
	t.Helper()
	begin := time.Now()
	var all []*alloc
	for range 20 {
		all = append(all, n.submit(t, job(t, sh("echo said; exit 3"))))
	}
	for _, a := range all {
		if got := a.ended(t); got != "exit 3" {
			t.Errorf("another task: got %s: %s", got, a.story())
		}
		test.Eq(t, "said\n", a.output(t, "stdout"), test.Sprint("another task: output"))
	}
	return time.Since(begin)
}

// goesOn says that a task that was started before runs and is collected.
func (a *alloc) goesOn(t *testing.T) {
	t.Helper()
	before := len(a.output(t, "stdout"))
	testsupport.Within(t, time.Minute, func() error {
		now, err := a.read("stdout")
		if err == nil {
			_, _, err = numbered(now)
		}
		if err != nil {
			return err
		}
		if len(now) <= before {
			return fmt.Errorf("%s has said nothing since", a.job)
		}
		return nil
	})
}

func TestHungLogDirectories_HoldUpNoOtherTask(t *testing.T) {
	testsupport.Long(t, "waits for timeouts")
	needRootAgent(t)
	n := newNode(t, nodeOptions{})
	talker := n.start(t, conf{"command": counter})
	well := twenty(t, n)

	var frozen *disk
	hung := gated(t, n, conf{"command": counter}, func(logs string) { frozen = mountDisk(t, logs) })
	hung.running(t)
	before := 0
	testsupport.Within(t, time.Minute, func() (err error) {
		b, _ := os.ReadFile(filepath.Join(frozen.dir, "main.stdout.0"))
		if before, _, err = numbered(string(b)); err == nil && before == 0 {
			err = errors.New("the task has said nothing")
		}
		return err
	})
	var unserved string
	var release func()
	never := gated(t, n, sh("true"), func(logs string) {
		unserved = logs
		release = testsupport.HungMount(t, logs)
	})
	frozen.freeze()
	testsupport.Within(t, time.Minute, func() error {
		return hung.tells("the file system of the log directory does not answer")
	})

	for _, phase := range []struct {
		name  string
		fault func()
	}{
		{"nothing else", func() {}},
		{"supervisor killed", func() { n.supervisor(t).end(t) }},
		{"supervisor stopped", func() { n.supervisor(t).pause(t) }},
		// an agent that is restarted changes modes in the frozen directory itself
		{"plugin killed", func() { plugin := n.plugin(t); plugin.end(t); n.nextPlugin(t, plugin) }},
	} {
		phase.fault()
		took := twenty(t, n)
		talker.goesOn(t)
		t.Logf("%s: 20 other tasks took %v, %v without a fault", phase.name, took.Round(time.Millisecond),
			well.Round(time.Millisecond))
	}
	never.ended(t)
	test.StrContains(t, never.story(), "log directory does not answer",
		test.Sprintf("no event says what failed below %s", unserved))
	release()
	talker.stop(t)

	begin := time.Now()
	_, _, err := n.Client().Jobs().Deregister(hung.job, false, nil)
	must.NoError(t, err)
	hung.ended(t)
	if took := time.Since(begin); took > 20*time.Second+10*time.Second+well { // a busy machine takes long for all
		t.Errorf("job stop of the hung one took %v", took)
	} else {
		t.Logf("job stop of the hung one took %v", took.Round(time.Millisecond))
	}
	frozen.thaw()
	testsupport.Within(t, time.Minute, func() error { // what was in the pipe comes now, and nothing comes twice
		b, err := os.ReadFile(filepath.Join(frozen.dir, "main.stdout.0"))
		if err != nil {
			return err
		}
		lines, _, err := numbered(string(b))
		if err == nil && lines <= before {
			err = fmt.Errorf("%d lines, and %d before the freeze", lines, before)
		}
		return err
	})
}
