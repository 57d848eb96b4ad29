// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// dirs are the directories of an object's task.
type dirs struct{ task, local, secrets, tmp, alloc, data, logs string }

func (s *Shim) dirs(o *stored) dirs {
	top := s.objectDir(o.Name)
	home, alloc := filepath.Join(top, o.Key.Task), filepath.Join(top, "alloc")
	return dirs{
		task: home, local: filepath.Join(home, "local"), secrets: filepath.Join(home, "secrets"),
		tmp: filepath.Join(home, "tmp"), alloc: alloc, data: filepath.Join(alloc, "data"), logs: filepath.Join(alloc, "logs"),
	}
}

// checkTaskName refuses a name that can't be a directory beside the object's own files.
func checkTaskName(name string) error {
	switch {
	case name == "" || len(name) > 128 || strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, "."):
		return fmt.Errorf("the task's name %q can't be used for a directory on the host", name)
	case name == "alloc" || name == recordFile || name == leaseFile || name == planFile:
		return fmt.Errorf("the task's name %q is that of a file of this driver: choose another", name)
	}
	return nil
}

// words replaces the Dir words by paths.
func (d dirs) words() *strings.Replacer {
	return strings.NewReplacer(endpoint.DirTask, d.task, endpoint.DirLocal, d.local, endpoint.DirSecrets, d.secrets,
		endpoint.DirAlloc, d.alloc)
}

// reach lets another user's task reach its directory: from the state directory on the modes are
// ours, above that they are the administrator's.
func (s *Shim) reach(u *task.User) error {
	if u == nil || u.UID == uint32(os.Geteuid()) {
		return nil
	}
	for dir := s.objects(); ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		if info.Mode()&0o001 == 0 && len(dir) >= len(s.cfg.StateDir) {
			err = os.Chmod(dir, info.Mode().Perm()|0o011) // the files in it are not readable
		} else if st := info.Sys().(*syscall.Stat_t); info.Mode()&0o001 == 0 && st.Uid != u.UID {
			err = fmt.Errorf("user id %d can't reach its task's directory, since %s is closed to others: set state_dir to "+
				"one elsewhere, such as /var/lib/outrider-remote", u.UID, dir)
		}
		if err != nil || dir == "/" {
			return err
		}
	}
}

// renew makes the directories anew, those of the task for its user.
func (d dirs) renew(u *task.User) error {
	if err := unmount(filepath.Dir(d.alloc)); err != nil {
		return err
	}
	for _, dir := range []string{d.task, d.alloc} {
		if err := owndir.RemoveAll(dir); err != nil {
			return fmt.Errorf("failed to remove what an earlier attempt made: %w", err)
		}
	}
	made := []struct {
		path string
		mode fs.FileMode
		own  bool // the user's
	}{
		{d.alloc, 0o755, false}, {d.logs, 0o755, false}, {d.data, 0o755, true}, {d.task, 0o755, true},
		{d.local, 0o755, true}, {d.secrets, 0o700, true}, {d.tmp, 0o755, true},
	}
	var err error
	for _, dir := range made {
		if err == nil {
			err = os.Mkdir(dir.path, dir.mode)
		}
		if err == nil {
			err = os.Chmod(dir.path, dir.mode) // whatever the umask is
		}
	}
	// what is in a directory first: once that is the user's, they may put anything there
	for _, dir := range slices.Backward(made) {
		if err == nil && dir.own && u != nil {
			err = os.Lchown(dir.path, int(u.UID), int(u.GID))
		}
	}
	if err != nil {
		return fmt.Errorf("failed to make the task's directories: %w", err)
	}
	return nil
}
