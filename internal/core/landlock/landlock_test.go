// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package landlock

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// confined runs f on a new thread, which may write only below dirs.
func confined(t *testing.T, dirs []string, f func() error) error {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := ConfineWrites(dirs...)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

func TestConfineWrites_AllowsOnlyItsDirectories(t *testing.T) {
	if ABI() == 0 {
		t.Skip("this kernel has no Landlock")
	}
	inside, outside := t.TempDir(), t.TempDir()
	read := filepath.Join(outside, "read")
	must.NoError(t, os.WriteFile(read, []byte("text"), 0o600))
	write := func(path string) func() error {
		return func() error { return os.WriteFile(path, nil, 0o600) }
	}

	test.NoError(t, confined(t, []string{inside}, write(filepath.Join(inside, "new"))))
	test.NoError(t, confined(t, []string{inside}, write("/dev/null")))
	test.NoError(t, confined(t, []string{inside}, func() error {
		_, err := os.ReadFile(read)
		return err
	}))
	test.NoError(t, confined(t, nil, write(filepath.Join(outside, "without directories"))))

	test.ErrorIs(t, confined(t, []string{inside}, write(filepath.Join(outside, "new"))), fs.ErrPermission)
	test.ErrorIs(t, confined(t, []string{inside}, write(read)), fs.ErrPermission)
	test.ErrorIs(t, confined(t, []string{inside}, func() error { return os.Remove(read) }), fs.ErrPermission)

	text, err := os.ReadFile(read)
	must.NoError(t, err)
	test.Eq(t, "text", string(text))
}

func TestConfineWrites_RefusesADirectoryThatIsALink(t *testing.T) {
	if ABI() == 0 {
		t.Skip("this kernel has no Landlock")
	}
	link := filepath.Join(t.TempDir(), "link")
	must.NoError(t, os.Symlink(t.TempDir(), link))
	err := confined(t, []string{link}, func() error { return nil })
	test.ErrorContains(t, err, "failed to confine writes with Landlock: open "+link)
}
