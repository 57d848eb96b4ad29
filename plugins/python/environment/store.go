// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// store is the cache's directory.
type store struct {
	dir     string   // without symbolic links
	builder *Builder // of the build that this is for; nil where it is this process's user
	python  string   // of the build that this is for: Spec.Interpreter
	log     func(format string, args ...any)
}

// open makes what is missing. It is called for each operation, so that the directory
// may be removed while this process runs.
func (c *Config) open() (*store, error) {
	dir, err := makeDir(c.Dir, c.Builders != nil)
	if err != nil {
		return nil, full(c.Dir, err)
	}
	s := &store{dir: dir, log: c.Log}
	for _, d := range []struct {
		name string
		mode fs.FileMode
	}{
		{"envs", 0o711}, // not to be listed: names are hashes of secrets, too
		{"meta", 0o700},
		{"users", 0o700},
		{"builds", 0o711},
		{"downloads", 0o711},
	} {
		if err := s.subdirectory(d.name, d.mode); err != nil {
			return nil, full(dir, err)
		}
	}
	return s, nil
}

// existing is open without making a cache: nil where there is none.
func (c *Config) existing() (*store, error) {
	if _, err := os.Stat(filepath.Join(c.Dir, "meta")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return c.open()
}

// by is the store of a build, by a user and for an interpreter.
func (s *store) by(as *Builder, python string) *store {
	its := *s
	its.builder, its.python = as, python
	return &its
}

func (s *store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// makeDir returns dir as it is without symbolic links, and makes what does not exist of it. With othersToo any user has
// to be able to reach it.
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

// subdirectory makes one of the cache's own directories, or repairs one that was left half-made.
func (s *store) subdirectory(name string, mode fs.FileMode) error {
	path := s.path(name)
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("failed to make the cache's directory: %w", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("failed to find the cache's directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a directory: remove it", path)
	}
	if info.Mode().Perm() != mode {
		if err := os.Chmod(path, mode); err != nil { // whatever the umask is
			return fmt.Errorf("failed to set the mode of the cache's directory: %w", err)
		}
	}
	return nil
}

// buildersDirectory makes a directory of the builder in one of ours.
func (s *store) buildersDirectory(name string) error {
	if err := s.subdirectory(name, 0o700); err != nil {
		return err
	}
	return s.giveToBuilder(s.path(name))
}

func (s *store) giveToBuilder(path string) error {
	if s.builder == nil {
		return nil
	}
	if err := os.Lchown(path, int(s.builder.UID), int(s.builder.GID)); err != nil {
		return fmt.Errorf("failed to give a directory to the user that builds: %w", err)
	}
	return nil
}

func owner(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// key is the name of an environment's files. Other users see it in the list of processes, and must not be able to try
// which secret fits.
func (s *store) key(ctx context.Context, text, secret string) (string, error) {
	sum := sha256.Sum256([]byte(text))
	if secret != "" {
		salt, err := s.salt(ctx)
		if err != nil {
			return "", err
		}
		mac := hmac.New(sha256.New, salt)
		mac.Write(sum[:])
		mac.Write([]byte(secret))
		mac.Sum(sum[:0])
	}
	return hex.EncodeToString(sum[:16]), nil
}

func (s *store) salt(ctx context.Context) ([]byte, error) {
	const size = 32
	salt, err := os.ReadFile(s.path("salt"))
	if err == nil && len(salt) == size {
		return salt, nil
	}
	l, err := s.waitLock(ctx, "salt", exclusive, nil)
	if err != nil {
		return nil, err
	}
	defer l.close()
	if salt, err = os.ReadFile(s.path("salt")); err == nil && len(salt) == size {
		return salt, nil
	}
	salt = make([]byte, size)
	rand.Read(salt) // never fails
	if err := writeFile(s.path("salt"), salt); err != nil {
		return nil, full(s.dir, err)
	}
	return salt, nil
}

// writeFile replaces a file as a whole. Only one may write it at a time.
func writeFile(path string, content []byte) error {
	temporary := path + temporarySuffix
	err := os.WriteFile(temporary, content, 0o600)
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		_ = os.Remove(temporary) // which is only in the way
		return fmt.Errorf("failed to write the cache's records: %w", err)
	}
	return nil
}

const temporarySuffix = ".new"

// splitID is for <key>.<n>.
func splitID(id string) (key string, n int, ok bool) {
	key, number, ok := strings.Cut(id, ".")
	n, err := strconv.Atoi(number)
	return key, n, ok && err == nil && n >= 0 && key != ""
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

// FullError says that the disk has no room for an environment. It is for a while only.
type FullError struct {
	Dir string
	Err error
}

func (e *FullError) Error() string {
	return fmt.Sprintf("the disk of the cache %s is full: free some space, or lower cache_max_size: %v", e.Dir, e.Err)
}

// Unwrap gives what failed, among it the system's ENOSPC or EDQUOT.
func (e *FullError) Unwrap() error { return e.Err }

// Temporary says that the same may succeed later, or elsewhere.
func (e *FullError) Temporary() bool { return true }

func full(dir string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return &FullError{dir, err}
	}
	return err
}
