package driver

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/task"
)

const strangerID = 65534

func TestStores_SkipsWhatAnotherUserCanReplace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give directories to another user")
	}
	short, err := os.MkdirTemp("", "s") // for a socket
	must(t, err)
	defer os.RemoveAll(short)
	root := filepath.Join(short, "a[b]*") // no pattern
	for _, name := range []string{"ours", "theirs", "writable"} {
		must(t, os.MkdirAll(filepath.Join(root, name), 0o700))
	}
	must(t, os.Chown(filepath.Join(root, "theirs"), strangerID, strangerID))
	must(t, os.Chmod(filepath.Join(root, "writable"), 0o777))
	must(t, os.Symlink("theirs", filepath.Join(root, "link")))
	must(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))

	dirs, err := stores(root)
	must(t, err)
	if want := []string{filepath.Join(root, "ours")}; !slices.Equal(dirs, want) {
		t.Errorf("read are %q, want %q", dirs, want)
	}
	if dirs, err := stores(filepath.Join(root, "missing")); len(dirs) > 0 || err != nil {
		t.Errorf("below what is missing there are %q, %v", dirs, err)
	}
	if dirs, err := stores(""); len(dirs) > 0 || err != nil {
		t.Errorf("before SetConfig there are %q, %v", dirs, err)
	}
	must(t, os.Chown(root, strangerID, strangerID))
	want := "state_dir can't be used: " + root + " belongs to user 65534, "
	if dirs, err := stores(root); len(dirs) > 0 || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("below a stranger's there are %q, %v", dirs, err)
	}
	if _, err := stateRoot(filepath.Dir(root), filepath.Base(root)); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the configuration is taken: %v", err)
	}
	d := New(context.Background(), nullLogger, testPlugin(testInstance{}))
	defer d.Close()
	d.local.root = root
	if _, err := d.probe(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the driver is healthy: %v", err)
	}
	if err := d.DestroyTask("a/b/c", true); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a task is destroyed by what is there: %v", err)
	}
}

// What is recovered is what Nomad and this driver remember, and not what a stranger wrote there.
func TestLoad_RefusesAStoreThatAnotherUserCanReplace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to give directories to another user")
	}
	store := task.Store{Dir: filepath.Join(t.TempDir(), "store")}
	must(t, store.Save(&task.State{ID: "a/b/c", Task: "the stranger's"}))
	saved, err := json.Marshal(savedTask{StoreDir: store.Dir, State: &task.State{ID: "a/b/c", Task: "ours"}})
	must(t, err)
	l := newLocal(t.Context(), nullLogger, "test-driver")
	defer l.Close()
	_, err = l.load("a/b/c", saved)
	must(t, err)
	must(t, os.Chown(store.Dir, strangerID, strangerID))
	if got, err := l.load("a/b/c", saved); err == nil || !strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("recovered is %+v, %v", got, err)
	}
}
