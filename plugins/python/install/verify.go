// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
)

// parts are the files of an environment without packages: its settings, the links to its interpreter, its scripts. No
// package may change them.
type parts map[string]version

// version identifies a file's content: no process can set its ctime.
type version struct {
	inode uint64
	ctime syscall.Timespec
}

func versionOf(info fs.FileInfo) version {
	st := info.Sys().(*syscall.Stat_t)
	return version{st.Ino, st.Ctim}
}

// snapshot looks at the new environment.
func (b *build) snapshot() (parts, error) {
	found := parts{}
	err := b.inside(func(root *os.Root) error {
		return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			if err == nil {
				found[name] = versionOf(info)
			}
			return err
		})
	})
	return found, err
}

// inside calls f with the environment's directory as a root that no link leads out of.
func (b *build) inside(f func(*os.Root) error) error {
	root, err := os.OpenRoot(b.Dir)
	if err == nil {
		defer root.Close()
		err = f(root)
	}
	var e *Error
	if err != nil && !errors.As(err, &e) {
		return fmt.Errorf("failed to look at the new environment: %w", err)
	}
	return err
}

// verify refuses packages that changed the environment itself, or that list files outside of it. (What is in it,
// sealing looks at.)
func (b *build) verify(before parts) error {
	return b.inside(func(root *os.Root) error {
		for name, was := range before {
			if info, err := root.Lstat(name); err != nil || versionOf(info) != was {
				return b.refused(Malicious, "a package changed or removed %q of the environment itself", name)
			}
		}
		records, err := fs.Glob(root.FS(), "lib/*/site-packages/*.dist-info/RECORD")
		for _, record := range records {
			if err = b.verifyRecord(root, record); err != nil {
				break
			}
		}
		return err
	})
}

// maxRecord is more than a package with a million files has.
const maxRecord = 256 << 20

// verifyRecord refuses a package whose list of files has one outside of the environment (RECORD, of the recording
// installed projects specification): a tool may have left it out silently.
func (b *build) verifyRecord(root *os.Root, record string) error {
	f, err := root.Open(record)
	if err != nil {
		return err
	}
	defer f.Close()
	r := csv.NewReader(io.LimitReader(f, maxRecord))
	r.FieldsPerRecord, r.ReuseRecord, r.LazyQuotes = -1, true, true
	for {
		row, err := r.Read()
		if err != nil {
			return nil // of the end, or of what is no list
		}
		file := path.Join(b.Dir, path.Dir(path.Dir(record)), row[0])
		if path.IsAbs(row[0]) {
			file = path.Clean(row[0])
		}
		if !strings.HasPrefix(file, b.Dir+"/") {
			return b.refused(Malicious, "%q lists a file outside of the environment, %q", path.Base(path.Dir(record)), row[0])
		}
	}
}
