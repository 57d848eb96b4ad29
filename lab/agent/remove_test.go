package agent

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRemoveAll_RemovesSealedDirectories(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	for _, p := range []string{"sealed/deep", "closed/deep"} {
		if err := os.MkdirAll(filepath.Join(dir, p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, p, "f"), nil, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{"sealed/deep", 0o555}, {"closed/deep", 0}, {"sealed", 0o555}, {"closed", 0}} {
		if err := os.Chmod(filepath.Join(dir, d.path), d.mode); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() != 0 {
		if err := os.RemoveAll(dir); err == nil {
			t.Fatal("they could be removed without more ado: this tests nothing")
		}
	}
	if err := removeAll(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}
