// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/hcl"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// maxFile is far more than a file of classes has.
const maxFile = 1 << 20

var options = schema.Of[File]()

// Load reads the operator's file, which only root may be able to change, and validates it.
// The error names the file and every mistake, one sentence each. It wraps fs.ErrNotExist if
// there is no file.
func Load(path string) (*File, error) {
	text, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("the operator's file can't be used: %w", err)
	}
	f, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("the operator's file %s is not valid: %w", path, err)
	}
	return f, nil
}

func parse(text string) (*File, error) {
	var body map[string]any
	if err := hcl.Decode(&body, text); err != nil {
		return nil, err
	}
	f, err := options.DecodeAgent(body)
	if err != nil {
		return nil, err
	}
	return &f, nil
}

// read checks each directory and link on the way too: who can change one of them can
// change what the file says.
func read(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", err
	}
	dir, err := owndir.Open(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	defer dir.Close()
	f, err := os.OpenFile(real, unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	if err := owndir.CheckFile(path, info); err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(text) > maxFile {
		err = errors.New("it has more than 1 MiB")
	}
	return string(text), err
}

// Engine returns that of a class. It has to exist.
func (f *File) Engine(class string) *engine.Engine { return engine.Open(f.ZFS, f.Classes[class].Root) }
