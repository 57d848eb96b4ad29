// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// parts are the files of an environment without packages: its settings, the links to its interpreter, its scripts. No
// package may change them. The content of a link is its target.
type parts map[string][]byte

// snapshot reads the new environment.
func (b *build) snapshot() (parts, error) {
	found := parts{}
	err := b.inside(func(root *os.Root) error {
		return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				found[name], err = readPart(root, name, -1)
			}
			return err
		})
	})
	return found, err
}

// readPart reads a file of at most max bytes (-1: any), or a link.
func readPart(root *os.Root, name string, max int) ([]byte, error) {
	info, err := root.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := root.Readlink(name)
		return []byte("link " + target), err
	case !info.Mode().IsRegular() || max >= 0 && info.Size() > int64(max):
		return nil, errors.New("it is not what it was")
	}
	return root.ReadFile(name)
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
		for name, content := range before {
			if now, err := readPart(root, name, len(content)); err != nil || !bytes.Equal(now, content) {
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
