// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Another task of the same user may run already, and knows the names.
func TestDirs_AreTheUsersOnceAllIsDone(t *testing.T) {
	testsupport.NeedRoot(t)
	const stranger = 65534
	top := t.TempDir()
	for dir := top; dir != "/"; dir = filepath.Dir(dir) { // the user reaches it
		if info, err := os.Stat(dir); err == nil && info.Mode()&0o001 == 0 {
			must.NoError(t, os.Chmod(dir, info.Mode().Perm()|0o011))
		}
	}
	victim := filepath.Join(t.TempDir(), "victim")
	must.NoError(t, os.WriteFile(victim, nil, 0o600))
	s, err := New(Config{StateDir: top})
	must.NoError(t, err)
	defer s.Close()
	d := s.dirs(&stored{Record: endpoint.Record{Name: "r", Key: endpoint.Key{Task: "web"}}})
	must.NoError(t, os.MkdirAll(filepath.Dir(d.task), 0o711))

	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread alone is the user's, and ends
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, stranger, stranger, stranger); e != 0 {
			t.Error(e)
			return
		}
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, dir := range []string{d.local, d.secrets, d.tmp} {
				if unix.Rename(dir, dir+".aside") == nil {
					_ = unix.Symlink(victim, dir)
				}
			}
		}
	})
	for range 200 {
		_ = d.renew(&task.User{UID: stranger, GID: stranger}) // the swapped ones may be in the way
		if info, err := os.Stat(victim); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("a file elsewhere has mode %v now, %v", info.Mode(), err)
			break
		}
	}
	close(stop)
	swapping.Wait()

	must.NoError(t, d.renew(&task.User{UID: stranger, GID: stranger}))
	for dir, want := range map[string]uint32{
		d.alloc: 0, d.logs: 0, d.data: stranger, d.task: stranger, d.local: stranger, d.secrets: stranger, d.tmp: stranger,
	} {
		var st unix.Stat_t
		must.NoError(t, unix.Lstat(dir, &st))
		test.Eq(t, want, st.Uid, test.Sprint(dir))
	}
}
