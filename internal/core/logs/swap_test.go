// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// swap calls do repeatedly until stop is called.
func swap(t *testing.T, do func() error) (stop func()) {
	t.Helper()
	quit := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
			}
			if err := do(); err != nil {
				t.Error(err)
				return
			}
		}
	})
	return func() { close(quit); swapping.Wait() }
}

// A task can write to its log directory, so it can replace a file between the check and the open. The victim stands for
// a file to which the supervisor may write, but not the task.
func TestOpen_NeverWritesToAFileThatWasSwappedIn(t *testing.T) {
	for name, plant := range map[string]func(victim, path string) error{
		"for a symbolic link": os.Symlink,
		"for a second name":   os.Link,
	} {
		for what, do := range map[string]func(path, other string) error{
			"exchanged": func(path, other string) error {
				return unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
			},
			"missing now and then": func(path, other string) error {
				err := errors.Join(ignore(os.Remove(path)), ignore(os.Link(other, path)))
				return err
			},
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				dir := t.TempDir()
				victim, path, other := filepath.Join(dir, "victim"), filepath.Join(dir, "web.stdout.0"), filepath.Join(dir, "other")
				must.NoError(t, os.WriteFile(victim, nil, 0o600))
				must.NoError(t, os.WriteFile(path, nil, 0o600))
				must.NoError(t, plant(victim, other))
				var theirs unix.Stat_t
				must.NoError(t, unix.Stat(victim, &theirs))
				at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				must.NoError(t, err)
				defer unix.Close(at)
				stop := swap(t, func() error { return do(path, other) })
				defer stop()
				opened := 0
				for range 5000 {
					fd, err := openFile(at, filepath.Base(path), unix.O_RDWR|unix.O_CREAT)
					if err != nil {
						continue
					}
					opened++
					var st unix.Stat_t
					err = unix.Fstat(fd, &st)
					unix.Close(fd)
					must.NoError(t, err, must.Sprint("the victim was opened"))
					must.NotEq(t, theirs.Ino, st.Ino, must.Sprint("the victim was opened"))
				}
				t.Logf("opened our own file %d times", opened)
			})
		}
	}
}

func ignore(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
