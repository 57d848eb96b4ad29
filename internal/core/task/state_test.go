// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestStore_LoadsASavedState(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	id := "9d0e6a3c/" + strings.Repeat("long/", 100) + "web/01234567"
	if _, err := s.Load(id); !errors.Is(err, ErrNoState) {
		t.Fatalf("before: %v", err)
	}
	saved := &State{ID: id, AllocID: "9d0e6a3c", Task: "web",
		Command: Command{
			Path: "sleep", Env: []string{"A=", "B=c=d"},
			Devices: []Device{{HostPath: "/dev/nomad-usb/1/tty", TaskPath: "/dev/zigbee/tty"}},
			Mounts:  []Mount{{Source: "/dev/nomad-usb/1/bus", Target: "/dev/bus/usb", ReadOnly: true}},
		}}
	must.NoError(t, s.Save(saved))
	got, err := s.Load(id)
	must.NoError(t, err, must.Sprintf("%+v", got))
	must.Eq(t, id, got.ID, must.Sprintf("%+v", got))
	must.Eq(t, saved.Command, got.Command, must.Sprintf("%+v", got))
	must.Eq(t, StateVersion, got.Version, must.Sprintf("%+v", got))
	test.Nil(t, s.LoadExit(id), test.Sprint("an exit, though none was saved"))
	at := time.Now().Truncate(time.Second)
	must.NoError(t, s.SaveExit(id, &Exit{Code: 7, At: at}))
	if e := s.LoadExit(id); e == nil || e.Code != 7 || !e.At.Equal(at) {
		t.Errorf("exit: %+v", e)
	}
	for _, f := range []string{"task.json", "record"} {
		fi, err := os.Stat(filepath.Join(s.TaskDir(id), f))
		if err != nil || fi.Mode().Perm() != 0o600 { // environments contain secrets
			t.Errorf("%s: %v, %v", f, fi.Mode(), err)
		}
	}
	must.NoError(t, s.Remove(id))
	test.NoError(t, s.Remove(id), test.Sprint("twice"))
	left, _ := os.ReadDir(filepath.Join(s.Dir, "tasks"))
	test.SliceEmpty(t, left, test.Sprint("left"))
}

func TestStore_DistinguishesUnreadableFromMissing(t *testing.T) {
	for name, content := range map[string]string{
		"empty":               "",
		"truncated":           `{"version":1,"id":"a/b`,
		"of a newer version":  `{"version":999,"id":"a/b/c"}`,
		"without an id":       `{"version":1}`,
		"not even an object":  `[]`,
		"filled with NULs":    strings.Repeat("\x00", 64),
		"wrong type of field": `{"version":1,"id":"a/b/c","identity":"x"}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := Store{Dir: t.TempDir()}
			must.NoError(t, s.Save(&State{ID: "a/b/c"}))
			must.NoError(t, os.WriteFile(filepath.Join(s.TaskDir("a/b/c"), "task.json"), []byte(content), 0o600))
			_, err := s.Load("a/b/c")
			test.ErrorContains(t, err, "the task's state is unreadable")
			test.False(t, errors.Is(err, ErrNoState))
			states, err := s.List()
			must.NoError(t, err, must.Sprint("list"))
			test.SliceEmpty(t, states, test.Sprint("list"))
		})
	}
}

func TestStore_FinishesAnInterruptedRename(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	st := &State{ID: "a/b/1", Request: "r"}
	must := func(err error) {
		t.Helper()
		must.NoError(t, err)
	}
	must(s.Save(st))
	must(s.MarkUnclaimed(st.ID))
	must(s.SaveExit(st.ID, &Exit{Code: 7}))
	from := s.TaskDir(st.ID)
	must(s.Rename(st, "a/b/2"))
	must(os.Rename(s.TaskDir("a/b/2"), from)) // as between the two steps of Rename
	for _, when := range []string{"killed in the middle", "finished"} {
		states, err := s.List()
		if err != nil || len(states) != 1 || states[0].ID != "a/b/2" {
			t.Fatalf("%s: %v, %v", when, states, err)
		}
		got, err := s.Load("a/b/2")
		if err != nil || got.ID != "a/b/2" || got.Request != "r" || !s.Unclaimed("a/b/2") || s.LoadExit("a/b/2") == nil {
			t.Errorf("%s: %+v, %v", when, got, err)
		}
		_, err = s.Load("a/b/1")
		test.ErrorIs(t, err, ErrNoState, test.Sprintf("%s: state of the old id", when))
	}
}

func TestStore_KeepsTheIDAfterAFailedRename(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	st := &State{ID: "a/b/1"}
	for _, id := range []string{"a/b/1", "a/b/2"} {
		must.NoError(t, s.Save(&State{ID: id}))
	}
	if err := s.Rename(st, "a/b/2"); err == nil || st.ID != "a/b/1" {
		t.Errorf("%v, and the id is %s", err, st.ID)
	}
	for _, id := range []string{"a/b/1", "a/b/2"} {
		got, err := s.Load(id)
		must.NoError(t, err, must.Sprintf("%+v", got))
		test.Eq(t, id, got.ID, test.Sprintf("%+v", got))
	}
}

func TestStore_ClaimSurvivesALaterSave(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	test.NoError(t, s.Claim("a/b/c"), test.Sprint("without a task"))
	must.NoError(t, s.Save(&State{ID: "a/b/c"}))
	if s.Unclaimed("a/b/c") {
		t.Error("a task without the mark is not unclaimed")
	}
	must.NoError(t, s.MarkUnclaimed("a/b/c"))
	must.True(t, s.Unclaimed("a/b/c"))
	for range 2 {
		must.NoError(t, s.Claim("a/b/c"))
		test.False(t, s.Unclaimed("a/b/c"))
		must.NoError(t, s.Save(&State{ID: "a/b/c"}), must.Sprint("after another Save"))
		test.False(t, s.Unclaimed("a/b/c"), test.Sprint("after another Save"))
	}
}

func TestOwnMounts_IsTrueForMountsAndDevicesAtOtherPaths(t *testing.T) {
	here, there := Device{"/dev/null", "/dev/null"}, Device{"/dev/null", "/dev/zigbee/tty"}
	for want, list := range map[bool][]Command{
		false: {{}, {Devices: []Device{here}}},
		true:  {{Devices: []Device{here, there}}, {Mounts: []Mount{{Source: "/a", Target: "/b"}}}},
	} {
		for _, c := range list {
			test.Eq(t, want, c.OwnMounts(), test.Sprintf("%+v", c))
		}
	}
}

func TestStore_ReadsAnOlderVersion(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	must.NoError(t, os.MkdirAll(s.TaskDir("a/b/c"), 0o700))
	old := `{"version":0,"id":"a/b/c","a_field_that_went":1}`
	must.NoError(t, os.WriteFile(filepath.Join(s.TaskDir("a/b/c"), "task.json"), []byte(old), 0o600))
	st, err := s.Load("a/b/c")
	must.NoError(t, err, must.Sprintf("%+v", st))
	test.Eq(t, "a/b/c", st.ID, test.Sprintf("%+v", st))
}
