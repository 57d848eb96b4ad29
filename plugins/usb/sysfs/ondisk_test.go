// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sysfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestScan_ReadsTheSameFromDiskAndMemory(t *testing.T) {
	listing := []string{xhci, headset, husbzb1, cp2102(pc+"/usb1/1-1", 1, 4, "ttyUSB2", "0001")}
	files := tree(t, listing...)
	dir := t.TempDir()
	for name, f := range files {
		path := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		var err error
		if f.Mode&fs.ModeSymlink != 0 {
			err = os.Symlink(string(f.Data), path)
		} else {
			err = os.WriteFile(path, f.Data, 0o644)
		}
		must.NoError(t, err)
	}
	want, err := Scan(files)
	must.NoError(t, err)
	must.SliceLen(t, 3, want)
	got, err := Scan(os.DirFS(dir))
	must.NoError(t, err)
	test.Eq(t, describeAll(want), describeAll(got))
}
