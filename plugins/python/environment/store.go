// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// store is the cache's directory.
type store struct {
	dir     string   // without symbolic links
	builder *Builder // the user of builds, nil if that is this process's
	python  string   // Spec.Interpreter of a build
	log     func(format string, args ...any)
}

// open creates missing directories. Each operation calls it, so the cache may be removed while this process runs.
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
		err := ignoreExisting(os.Mkdir(s.path(d.name), d.mode))
		if err == nil {
			err = os.Chmod(s.path(d.name), d.mode) // whatever the umask is
		}
		if err != nil {
			return nil, fmt.Errorf("failed to make the cache's directory: %w", err)
		}
	}
	return s, nil
}

// existing is open, but returns nil if there is no cache yet.
func (c *Config) existing() (*store, error) {
	if _, err := os.Stat(filepath.Join(c.Dir, "meta")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return c.open()
}

// forPython returns the store for a build with an interpreter.
func (s *store) forPython(path string) *store {
	its := *s
	its.python = path
	return &its
}

func (s *store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// makeDir creates dir if it is missing, and returns it without symbolic links. With othersToo it is an error if other
// users cannot reach it.
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

// key names the record of an environment, in a directory that other users cannot list.
func (s *Spec) key() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s%s", len(s.Key), s.Key, s.Secret))
	return hex.EncodeToString(sum[:])
}

// names lists one of the cache's directories.
func (s *store) names(dir string) ([]string, error) {
	f, err := os.Open(s.path(dir))
	if err != nil {
		return nil, fmt.Errorf("failed to list the cache: %w", err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("failed to list the cache: %w", err)
	}
	return names, nil
}
