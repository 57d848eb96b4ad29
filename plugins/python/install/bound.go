// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"context"
	"io/fs"
	"os"
	"time"
)

// watch cancels the context that it returns when a directory of the build is larger than MaxSize. (The size of a
// package is unknown until it is unpacked.) stop ends the watch, measures the environment again, and reports whether a
// directory was too large.
func (b *build) watch(ctx context.Context) (_ context.Context, stop func() (tooLarge bool)) {
	if b.MaxSize <= 0 {
		return ctx, func() bool { return false }
	}
	watched, cancel := context.WithCancel(ctx)
	found := make(chan bool, 1)
	go func() {
		defer cancel()
		for {
			begun := time.Now()
			if max(sizeOf(watched, b.Dir), sizeOf(watched, b.Work)) > b.MaxSize {
				found <- true
				return
			}
			select {
			case <-watched.Done():
				found <- false
				return
			case <-time.After(max(200*time.Millisecond, 9*time.Since(begun))): // it looks a tenth of the time at most
			}
		}
	}()
	return watched, func() bool { cancel(); return <-found || sizeOf(ctx, b.Dir) > b.MaxSize }
}

// sizeOf is the size of the files in a directory, 0 if it does not exist. The installer may change it meanwhile. It is
// incomplete when ctx ends.
func sizeOf(ctx context.Context, dir string) (size int64) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0
	}
	defer root.Close()
	_ = fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			if info, err := d.Info(); err == nil {
				size += info.Size()
			}
		}
		return ctx.Err() // errors of files are ignored: they may be removed meanwhile
	})
	return size
}
