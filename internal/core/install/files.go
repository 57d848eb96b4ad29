// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// binary looks at the plugin's file in a directory of plugins, and returns its version. What is
// not a file of this plugin is refused.
func (c *command) binary(dir *os.Root, name string) (version string, there bool, err error) {
	path := filepath.Join(dir.Name(), name)
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", false, nil
	case err != nil:
		return "", false, err
	case info.Mode()&fs.ModeSymlink != 0:
		to, _ := dir.Readlink(name)
		return "", false, fmt.Errorf("%s is a link to %s, as a package makes it: use the package manager (apt-get or dnf, "+
			"with %s), or remove the link", path, to, c.Binary)
	case !info.Mode().IsRegular():
		return "", false, fmt.Errorf("%s is not a file: remove it", path)
	}
	f, err := dir.Open(name)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	is, err := buildinfo.Read(f)
	if self, ok := debug.ReadBuildInfo(); err != nil || !ok || is.Path != self.Path {
		return "", false, fmt.Errorf("%s is not this plugin but another file: remove it, or move it away", path)
	}
	return is.Main.Version, true, nil
}

// installed reports whether the plugin's file is just as install makes it.
func (c *command) installed(dir *os.Root) (bool, error) {
	info, err := dir.Lstat(c.Binary)
	if err != nil || info.Mode() != 0o755 || owndir.CheckFile(c.Binary, info) != nil {
		return false, ignoreMissing(err)
	}
	a, err := sum(os.Open(c.exe))
	if err != nil {
		return false, err
	}
	b, err := sum(dir.Open(c.Binary))
	return a == b, err
}

func sum(f *os.File, err error) (sum [sha256.Size]byte, _ error) {
	if err != nil {
		return sum, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return [sha256.Size]byte(h.Sum(nil)), err
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// put replaces a file in one step, so that a program that runs from the old one goes on.
func put(dir *os.Root, name string, from io.Reader, mode fs.FileMode) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("failed to write %s: %w", filepath.Join(dir.Name(), name), err)
		}
	}()
	if err := sweep(dir, name); err != nil {
		return err
	}
	// neither a plugin nor a configuration for an agent that starts meanwhile
	temp := fmt.Sprintf("%s%d", tempPrefix(name), os.Getpid())
	f, err := dir.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	if err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = dir.Rename(temp, name)
	}
	if err != nil {
		return errors.Join(err, ignoreMissing(dir.Remove(temp)))
	}
	return syncDir(dir)
}

func tempPrefix(name string) string { return "." + name + ".new-" }

// sweep removes what an installation left that was killed.
func sweep(dir *os.Root, name string) error {
	left, err := fs.Glob(dir.FS(), tempPrefix(name)+"*")
	for _, temp := range left {
		err = errors.Join(err, ignoreMissing(dir.Remove(temp)))
	}
	return err
}

func syncDir(dir *os.Root) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// configFile is the file that install writes into the agent's configuration directory. Its
// first line tells whether the rest was changed since.
func (p Plugin) configFile() []byte {
	const head = "# Written by \"%s install\". Its \"uninstall\" removes this file, unless it was changed.\n# %x\n"
	return fmt.Appendf(nil, head+"%s", p.Binary, sha256.Sum256([]byte(p.Block)), p.Block)
}

var writtenBy = regexp.MustCompile(`^# Written by "[^"\n]+ install".*\n# ([0-9a-f]{64})\n`)

// unchanged reports whether a file is as install wrote it, this version's or another's.
func unchanged(text []byte) bool {
	head := writtenBy.FindSubmatch(text)
	return head != nil && string(head[1]) == fmt.Sprintf("%x", sha256.Sum256(bytes.TrimPrefix(text, head[0])))
}
