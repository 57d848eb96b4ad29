// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package build

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// ShimArchs are the architectures of hosts that a plugin has its shim for.
var ShimArchs = []string{"amd64", "arm64"}

const shimPackage = "cmd/outrider-shim" // in a plugin that puts a program on other hosts

// ShimPath is where a plugin's shim for an architecture is built. The plugin embeds it as <this>.gz.
func (p Plugin) ShimPath(arch string) string {
	return filepath.Join(p.Dir, "upload", "embedded", "outrider-shim-"+arch)
}

// shims builds the static programs that the plugin puts on other hosts, if it has any. They are the same in the
// plugin's binary for each architecture.
func (b Builder) shims(ctx context.Context, p Plugin) error {
	if !p.Shim {
		return nil
	}
	for _, b.Arch = range ShimArchs {
		path := p.ShimPath(b.Arch)
		// no version control stamp, as for the supervisor: a host has one copy of what is the same
		_, err := b.goBuild(ctx, "the shim for "+b.Arch, p.Dir, path, false,
			"-buildvcs=false", "-ldflags", "-s -w", "./"+shimPackage)
		if err == nil {
			err = pack(path)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pack compresses a file to one beside it, unless that was done. The same content gives the same bytes.
func pack(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	hash := sha256.Sum256(content)
	sum := hex.EncodeToString(hash[:])
	if done, err := packedSum(path + ".gz"); done == sum || err != nil {
		return err
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	w.Comment = sum
	if _, err := w.Write(content); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	// another build of this checkout may be reading it
	temp := fmt.Sprintf("%s.gz.%d", path, os.Getpid())
	if err := os.WriteFile(temp, packed.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, path+".gz")
}

// packedSum is the sum that pack wrote into the file's header, empty if it did not.
func packedSum(path string) (string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return "", nil // it is written again
	}
	return r.Comment, nil
}
