// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package upload

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
)

// programs are the shims, by GOARCH.
type programs map[string]*program

func (p programs) String() string { return strings.Join(slices.Sorted(maps.Keys(p)), " and ") }

// program is a shim.
type program struct {
	packed []byte                        // by gzip; nil: it is not
	plain  func() (io.ReadCloser, error) // without packed

	once   sync.Once
	build  string
	length int64
	err    error
}

// open reads the program.
func (p *program) open() (io.ReadCloser, error) {
	if p.packed == nil {
		return p.plain()
	}
	content, err := gzip.NewReader(bytes.NewReader(p.packed))
	return io.NopCloser(content), err // one may still read it
}

// openPacked reads the program as it is packed.
func (p *program) openPacked() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(p.packed)), nil
}

// sum is the build, as the program itself prints it, and the size. They are found out when they are first needed: an
// agent looks at each plugin several times without any use of it.
func (p *program) sum() (build string, size int64, err error) {
	p.once.Do(func() {
		var content io.ReadCloser
		if content, p.err = p.open(); p.err == nil {
			p.build, p.length, p.err = supervisor.BuildOfReader(content)
			content.Close()
		}
		if p.err != nil {
			p.err = fmt.Errorf("failed to read the shim: %w", p.err)
		}
	})
	return p.build, p.length, p.err
}
