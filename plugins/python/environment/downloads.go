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

	"github.com/outrider-dev/outrider/internal/core/task"
)

// downloadDir is a directory of downloads, which one build after the other uses: downloads/<n>.<boot>. It is the
// builder's during a build, and ours in between. Its mode is keptMode only then: in any other mode it is of a build
// that did not end, and no other build uses it. Nor does one after the machine's next start: a crash may have left
// files empty, and uv installs them so, even with hashes.
type downloadDir struct {
	store *store // of the build
	path  string
	lock  *lock
}

const (
	keptMode = 0o500 // of downloads between builds
	usedMode = 0o700 // of downloads during a build
)

// thisBoot ends the names of the downloads since the machine's start.
func thisBoot() string { return "." + task.BootID() }

// acquireDownloads gives the builder the first directory that no other build has.
func (s *store) acquireDownloads() (*downloadDir, error) {
	for n := 0; ; n++ {
		name := filepath.Join("downloads", strconv.Itoa(n)+thisBoot())
		l, err := s.tryLock(name, exclusive)
		if err != nil {
			return nil, err
		}
		if l == nil {
			continue
		}
		k := &downloadDir{store: s, path: s.path(name), lock: l}
		if err := k.handOver(); err != nil {
			l.close()
			return nil, fmt.Errorf("failed to give the builder the downloads: %w", err)
		}
		return k, nil
	}
}

func (k *downloadDir) handOver() error {
	info, err := os.Lstat(k.path)
	if err == nil && info.Mode() == fs.ModeDir|keptMode {
		err = os.Chmod(k.path, usedMode) // so a crash from here on makes it unusable
		if b := k.store.builder; err == nil && b != nil {
			err = k.give(uint32(os.Geteuid()), int(b.UID), int(b.GID))
		}
		if err == nil {
			return nil
		}
		k.store.log("downloads are not used any more: %v", err)
	}
	if err := k.store.dropDownloads(k.path); err != nil {
		return err
	}
	return k.store.buildersDirectory(k.path)
}

// release ends what acquireDownloads began; quiet means that no process can change the directory any more.
func (k *downloadDir) release(quiet bool) {
	defer k.lock.close()
	err := errors.New("its builder still runs")
	if quiet {
		if err = k.give(k.store.builtBy(), os.Geteuid(), os.Getegid()); err == nil {
			err = os.Chmod(k.path, keptMode)
		}
		if err == nil {
			return
		}
	}
	k.store.log("downloads are not kept: %v", err)
	if err := k.store.dropDownloads(k.path); err != nil {
		k.store.log("failed to remove downloads, the next build will: %v", err)
	}
}

// give changes the owner of all downloads. It refuses files of others, which the builder may have linked.
func (k *downloadDir) give(from uint32, uid, gid int) error {
	root, err := os.OpenRoot(k.path)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		kind := info.Mode().Type()
		switch {
		case owner(info) != from:
			return fmt.Errorf("%s belongs to user %d instead of %d", name, owner(info), from)
		case kind != 0 && kind != fs.ModeDir && kind != fs.ModeSymlink:
			return fmt.Errorf("%s is neither a file, a directory nor a link", name)
		case kind != fs.ModeSymlink:
			if err := root.Chmod(name, info.Mode()&0o755); err != nil {
				return err
			}
		}
		return root.Lchown(name, uid, gid)
	})
}

// dropDownloads removes a directory of downloads. What an interruption leaves of it serves no build.
func (s *store) dropDownloads(path string) error {
	if err := ignoreMissing(os.Chmod(path, usedMode)); err != nil {
		return fmt.Errorf("failed to remove downloads: %w", err)
	}
	s.removeTree(path)
	return nil
}
