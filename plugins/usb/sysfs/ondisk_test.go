package sysfs

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestScan_DiskEqualsMemory(t *testing.T) {
	listing := []string{xhci, headset, husbzb1, cp2102(pc+"/usb1/1-1", 1, 4, "ttyUSB2", "0001")}
	files := tree(t, listing...)
	dir := t.TempDir()
	for name, f := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if f.Mode&fs.ModeSymlink != 0 {
			err = os.Symlink(string(f.Data), path)
		} else {
			err = os.WriteFile(path, f.Data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want, err := Scan(files)
	if err != nil || len(want) != 3 {
		t.Fatalf("got %d devices, %v", len(want), err)
	}
	got, err := Scan(os.DirFS(dir))
	if err != nil || describeAll(got) != describeAll(want) {
		t.Errorf("got %v\n%s\nwant\n%s", err, describeAll(got), describeAll(want))
	}
}
