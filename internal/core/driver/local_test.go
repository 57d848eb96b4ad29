// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

const strangerID = 65534

func TestStores_SkipsDirectoriesThatAnotherUserCanReplace(t *testing.T) {
	testsupport.NeedRoot(t)             // to give directories to another user
	short, err := os.MkdirTemp("", "s") // for a socket
	must.NoError(t, err)
	defer os.RemoveAll(short)
	root := filepath.Join(short, "a[b]*") // stores must not treat this name as a pattern
	for _, name := range []string{"ours", "theirs", "writable"} {
		must.NoError(t, os.MkdirAll(filepath.Join(root, name), 0o700))
	}
	must.NoError(t, os.Chown(filepath.Join(root, "theirs"), strangerID, strangerID))
	must.NoError(t, os.Chmod(filepath.Join(root, "writable"), 0o777))
	must.NoError(t, os.Symlink("theirs", filepath.Join(root, "link")))
	must.NoError(t, os.WriteFile(filepath.Join(root, "file"), nil, 0o600))

	dirs, err := stores(root)
	must.NoError(t, err)
	test.SliceEqOp(t, []string{filepath.Join(root, "ours")}, dirs, test.Sprint("stores"))
	dirs, err = stores(filepath.Join(root, "missing"))
	must.SliceEmpty(t, dirs, must.Sprint("stores below a missing directory"))
	test.NoError(t, err, test.Sprint("stores below a missing directory"))
	dirs, err = stores("")
	must.SliceEmpty(t, dirs, must.Sprint("stores before SetConfig"))
	test.NoError(t, err, test.Sprint("stores before SetConfig"))
	must.NoError(t, os.Chown(root, strangerID, strangerID))
	want := "state_dir can't be used: " + root + " belongs to user 65534, "
	if dirs, err := stores(root); len(dirs) > 0 || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("stores below another user's directory: %q, %v", dirs, err)
	}
	_, err = stateRoot(filepath.Dir(root), filepath.Base(root))
	test.ErrorContains(t, err, want, test.Sprint("the configuration is accepted"))
	d := New(context.Background(), nullLogger, testPlugin(testInstance{}))
	defer d.Close()
	d.local.settings.Store(&settings{options: defaultPluginOptions(), root: root})
	_, _, err = d.probe(t.Context())
	test.ErrorContains(t, err, want, test.Sprint("the driver is healthy"))
	test.ErrorContains(t, d.DestroyTask("a/b/c", true), want,
		test.Sprint("a task is destroyed because of another user's file"))
}

// RecoverTask must use the state of Nomad and this driver, and no files that another user wrote.
func TestLoad_RefusesAStoreThatAnotherUserCanReplace(t *testing.T) {
	testsupport.NeedRoot(t) // to give directories to another user
	store := task.Store{Dir: filepath.Join(t.TempDir(), "store")}
	must.NoError(t, store.Save(&task.State{ID: "a/b/c", Task: "the stranger's"}))
	saved, err := json.Marshal(savedTask{StoreDir: store.Dir, State: &task.State{ID: "a/b/c", Task: "ours"}})
	must.NoError(t, err)
	l := newLocal(t.Context(), nullLogger, "test-driver")
	defer l.Close()
	_, err = l.load("a/b/c", saved)
	must.NoError(t, err)
	must.NoError(t, os.Chown(store.Dir, strangerID, strangerID))
	got, err := l.load("a/b/c", saved)
	test.ErrorContains(t, err, "belongs to user 65534", test.Sprintf("recovered is %+v", got))
}
