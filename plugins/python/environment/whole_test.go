// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// A task that runs as the owner of the environments, a crash, or an operator could have made these changes.
func TestCache_RebuildsChangedEnvironments(t *testing.T) {
	file := func(e *Environment) string { return filepath.Join(e.Dir, "lib", "package1", "module1.py") }
	for _, c := range []struct {
		what string
		do   func(e *Environment) error
	}{
		{"a file is overwritten, with its old time", func(e *Environment) error {
			info, err := os.Stat(file(e))
			if err != nil {
				return err
			}
			err = writable(file(e), func() error { return os.WriteFile(file(e), []byte("x = 2\n"), 0o444) })
			if err != nil {
				return err
			}
			return os.Chtimes(file(e), info.ModTime(), info.ModTime())
		}},
		{"a file is removed", func(e *Environment) error {
			return writable(filepath.Dir(file(e)), func() error { return os.Remove(file(e)) })
		}},
		{"a file is added", func(e *Environment) error {
			return writable(filepath.Dir(file(e)), func() error { return os.WriteFile(file(e)+"c", nil, 0o444) })
		}},
		{"a mode is changed", func(e *Environment) error { return os.Chmod(file(e), 0o644) }},
		{"a link leads elsewhere", func(e *Environment) error {
			return writable(e.Dir, func() error {
				if err := os.Remove(filepath.Join(e.Dir, "lib64")); err != nil {
					return err
				}
				return os.Symlink("bin", filepath.Join(e.Dir, "lib64"))
			})
		}},
		{"the directory is removed", func(e *Environment) error { e.store.removeTree(e.Dir); return nil }},
		{"the record is truncated", func(e *Environment) error { return os.Truncate(recordOf(e), 10) }},
		{"the record is removed", func(e *Environment) error { return os.Remove(recordOf(e)) }},
		{"not synced to disk before the last crash or reboot", func(e *Environment) error { return anotherBoot(e) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			cache := testCache(t)
			s := Spec{Key: "k", Build: building(30)}
			first := mustGet(t, cache, s)
			defer first.Release()
			nextFileTime(t)
			must.NoError(t, c.do(first))
			second := mustGet(t, cache, s)
			defer second.Release()
			test.False(t, second.Hit, test.Sprint("the changed environment was used"))
			if second.Dir == first.Dir && c.what != "the directory is removed" {
				t.Error("it was replaced under the task that uses it")
			}
			test.NoError(t, checkTree(second.Dir, 30))
			first.Release()
			second.Release()
			mustTidy(t, cache)
			mustBeTidy(t, cache, 1)
		})
	}
}

// nextFileTime waits for the next tick (CONFIG_HZ) of the kernel's clock for file times, so the next change of a file
// gets a later time than all previous changes.
func nextFileTime(t testing.TB) {
	t.Helper()
	now := func() (clock unix.Timespec) {
		must.NoError(t, unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &clock))
		return clock
	}
	for begun := now(); now() == begun; {
		time.Sleep(time.Millisecond)
	}
}

// writable makes a file or directory writable while it calls the function do.
func writable(path string, do func() error) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if err := os.Chmod(path, info.Mode()|0o200); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return os.Chmod(path, info.Mode())
}

// anotherBoot makes an environment look as if it was built before the last reboot.
func anotherBoot(e *Environment) error { return changeRecord(e, task.BootID(), "another") }

// changeRecord replaces text in an environment's record, and keeps the file's mode and time.
func changeRecord(e *Environment, text, replacement string) error {
	record := recordOf(e)
	info, err := os.Stat(record)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(record)
	if err != nil {
		return err
	}
	if !strings.Contains(string(content), text) {
		return fmt.Errorf("%q is not in the record: %s", text, content)
	}
	changed := strings.Replace(string(content), text, replacement, 1)
	return errors.Join(os.Chmod(record, 0o600), os.WriteFile(record, []byte(changed), 0), os.Chmod(record, info.Mode()),
		os.Chtimes(record, info.ModTime(), info.ModTime()))
}

// ZFS allocates a file's blocks when it syncs, long after the write. That must not make an environment look changed.
func TestCache_IgnoresTheAllocationOfFileBlocks(t *testing.T) {
	const size = 1 << 20
	c := testCache(t)
	s := Spec{Key: "k", Build: func(ctx context.Context, dir, scratch string) error {
		err := building(3)(ctx, dir, scratch)
		return errors.Join(err, os.Truncate(filepath.Join(dir, "lib/package1/module1.py"), size)) // a hole: no blocks
	}}
	e := mustGet(t, c, s)
	e.Release()
	test.GreaterEq(t, size, e.Size)
	must.NoError(t, changeRecord(e, fmt.Sprintf(`"size": %d`, e.Size), fmt.Sprintf(`"size": %d`, e.Size+4096)))
	again := mustGet(t, c, s)
	defer again.Release()
	test.True(t, again.Hit, test.Sprint("it was built again"))
}

func TestCache_KeepsUnreadableEnvironments(t *testing.T) {
	c := testCache(t)
	s := Spec{Key: "k", Fresh: time.Nanosecond, Build: building(3)}
	mustGet(t, c, s).Release()
	e := mustGet(t, c, s)
	e.Release()
	record := recordOf(e)
	must.NoError(t, os.Rename(record, record+".aside"))
	if err := os.Symlink(record, record); err != nil { // the record exists, but cannot be read
		t.Fatal(err)
	}
	_, err := c.Get(t.Context(), s)
	test.ErrorIs(t, err, unix.ELOOP)
	test.ErrorIs(t, c.Tidy(t.Context()), unix.ELOOP, test.Sprint("tidied"))
	must.NoError(t, os.Rename(record+".aside", record))
	_, err = os.Stat(e.Dir)
	test.NoError(t, err)
	mustTidy(t, c)
	mustBeTidy(t, c, 1) // the second Get has replaced the first environment, which is removed
}

func TestCache_ReusesEnvironmentsAfterAReboot(t *testing.T) {
	c := testCache(t)
	s := Spec{Key: "k", Build: building(3)}
	e := mustGet(t, c, s)
	e.Release()
	used := time.Now().Add(-time.Hour)
	record := recordOf(e)
	must.NoError(t, os.Chtimes(record, used, used))
	mustTidy(t, c)
	info, err := os.Stat(record)
	if err != nil || !info.ModTime().Equal(used) {
		t.Errorf("its last use is recorded as %v, %v", info.ModTime(), err)
	}
	must.NoError(t, anotherBoot(e))
	again := mustGet(t, c, s)
	defer again.Release()
	test.True(t, again.Hit, test.Sprint("it was built again"))
}
