// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// downloadDir is a directory with what installers download, for one build after the other: downloads/<n>. It is the
// builder's during a build, and ours in between. Its record, downloads/<n>.digest, exists in between only: what was
// changed, or left by a killed build, serves no other.
type downloadDir struct {
	store *store // of the build
	name  string
	lock  *lock
}

const digestSuffix = ".digest"

func (k *downloadDir) recordPath() string { return k.store.path(k.name + digestSuffix) }

// acquireDownloads gives the builder the first directory that no other build has.
func (s *store) acquireDownloads() (*downloadDir, error) {
	for n := 0; ; n++ {
		k := &downloadDir{store: s, name: filepath.Join("downloads", strconv.Itoa(n))}
		var err error
		if k.lock, err = s.tryLock(k.name, exclusive); err != nil {
			return nil, err
		}
		if k.lock == nil {
			continue
		}
		if err := k.handOver(); err != nil {
			k.lock.close()
			return nil, fmt.Errorf("failed to give the builder the downloads: %w", err)
		}
		return k, nil
	}
}

func (k *downloadDir) handOver() error {
	s := k.store
	if why := k.unusable(); why != nil {
		if !errors.Is(why, fs.ErrNotExist) {
			s.log("downloads are not used any more: %v", why)
		}
		if err := s.trash(nil, s.path(k.name)); err != nil {
			return err
		}
	}
	if err := ignoreMissing(os.Remove(k.recordPath())); err != nil {
		return err
	}
	if err := s.subdirectory(k.name, 0o700); err != nil {
		return err
	}
	if s.builder == nil {
		return nil
	}
	_, err := s.reown(s.path(k.name), uint32(os.Geteuid()), s.builder)
	return err
}

// unusable compares the directory with its record.
func (k *downloadDir) unusable() error {
	now, err := measure(k.store.path(k.name))
	if err != nil {
		return err
	}
	content, err := os.ReadFile(k.recordPath())
	if err != nil {
		return errors.New("its build did not end")
	}
	if string(content) != now.Digest {
		return errors.New("files were changed")
	}
	return nil
}

// release ends what acquireDownloads began; quiet means that no process can change the directory any more.
func (k *downloadDir) release(quiet bool) {
	s := k.store
	defer k.lock.close()
	err := errors.New("its builder still runs")
	if quiet {
		if err = k.seal(); err == nil {
			return
		}
	}
	s.log("downloads are not kept: %v", err)
	if err := s.trash(nil, s.path(k.name)); err != nil {
		s.log("failed to remove downloads, the next build will: %v", err)
	}
}

func (k *downloadDir) seal() error {
	s := k.store
	t, err := s.reown(s.path(k.name), s.builtBy(), nil)
	if err != nil {
		return err
	}
	return writeFile(k.recordPath(), []byte(t.Digest))
}

// handover changes the owner of a tree. The top is the other's last.
type handover struct {
	from     uint32
	uid, gid int
}

// reown walks through a tree, to is nil where it is to be ours.
func (s *store) reown(dir string, from uint32, to *Builder) (tree, error) {
	h := handover{from, os.Geteuid(), os.Getegid()}
	if to != nil {
		h.uid, h.gid = int(to.UID), int(to.GID)
	}
	b := walk(dir, h)
	return b.tree(), b.err
}

func (h handover) enter(fd int, rel string, st *unix.Stat_t) error {
	return takeOver(fd, rel, st, h.from)
}

func (h handover) leave(fd int, rel string) error {
	return changing(rel, unix.Fchown(fd, h.uid, h.gid))
}

func (h handover) entry(dir int, name, rel string, st *unix.Stat_t) error {
	if err := checkOwner(rel, st, h.from); err != nil {
		return err
	}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		err = unix.Fchmodat(dir, name, st.Mode&0o755, 0)
	case unix.S_IFLNK:
	default:
		return fmt.Errorf("%s is neither a file, a directory nor a link", rel)
	}
	if err == nil {
		err = unix.Fchownat(dir, name, h.uid, h.gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	return changing(rel, err)
}
