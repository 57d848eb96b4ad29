// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// store is an opened cache directory.
type store struct {
	dir     string              // without symbolic links
	builder *syscall.Credential // the user that runs builds; nil: this process's user
	log     func(format string, args ...any)
}

// open creates missing directories. Each operation calls it again, because the cache may be deleted in the meantime.
func (c *Config) open() (*store, error) {
	dir, err := makeDir(c.Dir, c.Builder != nil)
	if err != nil {
		return nil, err
	}
	s := &store{dir: dir, builder: c.Builder, log: c.Log}
	for _, d := range []struct {
		name string
		mode fs.FileMode
	}{
		{"envs", 0o711},
		{"meta", 0o700},
		{"users", 0o700},
		{"builds", 0o711},
	} {
		path := s.path(d.name)
		err := cmp.Or(ignoreExisting(os.Mkdir(path, d.mode)), os.Chmod(path, d.mode)) // regardless of the umask
		if err != nil {
			return nil, fmt.Errorf("failed to make the cache directory: %w", err)
		}
	}
	return s, nil
}

func (s *store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// makeDir creates dir if it is missing, and returns its path without symbolic links. If othersToo is set, other users
// must be able to reach the directory.
func makeDir(dir string, othersToo bool) (string, error) {
	f, err := owndir.Make(dir, 0o755)
	if err != nil {
		return "", fmt.Errorf("failed to open the cache directory: %w", err)
	}
	defer f.Close()
	for p := f.Name(); othersToo; p = filepath.Dir(p) {
		info, err := os.Lstat(p)
		if err != nil {
			return "", fmt.Errorf("failed to find the cache directory: %w", err)
		}
		if info.Mode()&0o001 == 0 {
			return "", fmt.Errorf("tasks of other users cannot reach the cache through %s: chmod o+x %s, "+
				"or choose another cache directory", p, p)
		}
		if p == "/" {
			break
		}
	}
	return f.Name(), nil
}

func owner(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// key returns the name of an environment's record, a hash of Key and Secret. Other users cannot see these names.
func (s *Spec) key() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s%s", len(s.Key), s.Key, s.Secret))
	return hex.EncodeToString(sum[:])
}

func (s *store) names(dir string) (names []string, err error) {
	entries, err := os.ReadDir(s.path(dir))
	if err != nil {
		return nil, fmt.Errorf("failed to list the cache: %w", err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// lock is a lock on one byte of the cache's lock file. It belongs to an open file description (fcntl(2), F_OFD_SETLK):
// it also excludes other goroutines, and the kernel releases it when the process ends. These names have locks:
//
//	<Spec.Key>  exclusive: an environment with this key is being built
//	<id>        shared: the environment is being built, or is between its Get and its Release;
//	            exclusive: it may be removed
type lock struct {
	file *os.File
	at   int64
}

type lockKind int16

const (
	shared    lockKind = unix.F_RDLCK
	exclusive lockKind = unix.F_WRLCK
)

// tryLock locks the byte of a name. It returns nil without an error if another lock excludes this one.
func (s *store) tryLock(name string, kind lockKind) (*lock, error) {
	sum := sha256.Sum256([]byte(name))
	at := int64(binary.BigEndian.Uint64(sum[:8]) >> 2)
	f, err := os.OpenFile(s.path("lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("failed to open the cache's lock file: %w", err)
	}
	l := &lock{file: f, at: at}
	if err = l.set(int16(kind)); err == nil {
		return l, nil
	}
	f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, nil
	}
	return nil, fmt.Errorf("failed to lock %s: %w", f.Name(), err)
}

// close releases the lock. It may be called more than once, and on nil. Closing the file alone is not enough: a child
// between fork and exec shares its open file description, and would keep the lock.
func (l *lock) close() {
	if l == nil {
		return
	}
	_ = l.set(unix.F_UNLCK) // if this fails, closing the file is usually enough
	_ = l.file.Close()
}

func (l *lock) set(kind int16) error {
	return unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: l.at, Len: 1})
}

// removeTree removes trees without following links. It only logs errors, because Tidy tries again.
func (s *store) removeTree(paths ...string) {
	for _, path := range paths {
		if err := owndir.RemoveAll(path); err != nil {
			s.log("failed to remove %s: %v; the plugin will try again", path, err)
		}
	}
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func ignoreExisting(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
