package task

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestStore_LoadsWhatWasSaved(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	id := "9d0e6a3c/" + strings.Repeat("long/", 100) + "web/01234567"
	if _, err := s.Load(id); !errors.Is(err, ErrNoState) {
		t.Fatalf("before: %v", err)
	}
	saved := &State{ID: id, AllocID: "9d0e6a3c", Task: "web", Command: Command{Path: "sleep", Env: []string{"A=", "B=c=d"}}}
	if err := s.Save(saved); err != nil {
		t.Fatal(err)
	}
	got, err := s.Load(id)
	if err != nil || got.ID != id || got.Command.Env[0] != "A=" || got.Version != StateVersion {
		t.Fatalf("%+v, %v", got, err)
	}
	if s.LoadExit(id) != nil {
		t.Error("an exit, though none was saved")
	}
	at := time.Now().Truncate(time.Second)
	if err := s.SaveExit(id, &Exit{Code: 7, At: at}); err != nil {
		t.Fatal(err)
	}
	if e := s.LoadExit(id); e == nil || e.Code != 7 || !e.At.Equal(at) {
		t.Errorf("exit: %+v", e)
	}
	for _, f := range []string{"task.json", "record"} {
		fi, err := os.Stat(filepath.Join(s.TaskDir(id), f))
		if err != nil || fi.Mode().Perm() != 0o600 { // environments hold secrets
			t.Errorf("%s: %v, %v", f, fi.Mode(), err)
		}
	}
	if err := s.Remove(id); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(id); err != nil {
		t.Errorf("twice: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Join(s.Dir, "tasks")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestStore_TellsUnreadableFromMissing(t *testing.T) {
	for name, content := range map[string]string{
		"empty":               "",
		"truncated":           `{"version":1,"id":"a/b`,
		"of a newer version":  `{"version":999,"id":"a/b/c"}`,
		"of something else":   `{"version":1}`,
		"not even an object":  `[]`,
		"filled with NULs":    strings.Repeat("\x00", 64),
		"wrong type of field": `{"version":1,"id":"a/b/c","identity":"x"}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := Store{Dir: t.TempDir()}
			if err := s.Save(&State{ID: "a/b/c"}); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(s.TaskDir("a/b/c"), "task.json"), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Load("a/b/c"); !errors.Is(err, ErrBadState) {
				t.Errorf("got %v", err)
			}
			states, unreadable, err := s.List()
			if err != nil || len(states) != 0 || len(unreadable) != 1 {
				t.Errorf("list: %v, %v, %v", states, unreadable, err)
			}
		})
	}
}

func TestStore_FinishesAKilledRename(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	st := &State{ID: "a/b/1", Request: "r"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.Save(st))
	must(s.MarkUnclaimed(st.ID))
	must(s.SaveExit(st.ID, &Exit{Code: 7}))
	from := s.TaskDir(st.ID)
	must(s.Rename(st, "a/b/2"))
	must(os.Rename(s.TaskDir("a/b/2"), from)) // as it is between the two steps
	for _, when := range []string{"killed in the middle", "finished"} {
		states, unreadable, err := s.List()
		if err != nil || len(unreadable) != 0 || len(states) != 1 || states[0].ID != "a/b/2" {
			t.Fatalf("%s: %v, %v, %v", when, states, unreadable, err)
		}
		got, err := s.Load("a/b/2")
		if err != nil || got.ID != "a/b/2" || got.Request != "r" || !s.Unclaimed("a/b/2") || s.LoadExit("a/b/2") == nil {
			t.Errorf("%s: %+v, %v", when, got, err)
		}
		if _, err := s.Load("a/b/1"); !errors.Is(err, ErrNoState) {
			t.Errorf("%s: of the old id there is %v", when, err)
		}
	}
}

func TestStore_KeepsTheNameAfterAFailedRename(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	st := &State{ID: "a/b/1"}
	for _, id := range []string{"a/b/1", "a/b/2"} {
		if err := s.Save(&State{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Rename(st, "a/b/2"); err == nil || st.ID != "a/b/1" {
		t.Errorf("%v, and the id is %s", err, st.ID)
	}
	for _, id := range []string{"a/b/1", "a/b/2"} {
		if got, err := s.Load(id); err != nil || got.ID != id {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

func TestStore_KeepsAClaim(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	if err := s.Claim("a/b/c"); err != nil {
		t.Errorf("of nothing: %v", err)
	}
	if err := s.Save(&State{ID: "a/b/c"}); err != nil {
		t.Fatal(err)
	}
	if s.Unclaimed("a/b/c") { // as of an earlier version
		t.Error("without a mark nobody may be asked to forget it")
	}
	if err := s.MarkUnclaimed("a/b/c"); err != nil || !s.Unclaimed("a/b/c") {
		t.Fatalf("%v", err)
	}
	for range 2 {
		if err := s.Claim("a/b/c"); err != nil || s.Unclaimed("a/b/c") {
			t.Errorf("%v", err)
		}
		if err := s.Save(&State{ID: "a/b/c"}); err != nil || s.Unclaimed("a/b/c") {
			t.Errorf("after another Save: %v", err)
		}
	}
}

func TestStore_KeepsDevices(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	c := Command{
		Devices: []Device{{HostPath: "/dev/nomad-usb/1/tty", TaskPath: "/dev/zigbee/tty"}},
		Mounts:  []Mount{{Source: "/dev/nomad-usb/1/bus", Target: "/dev/bus/usb", ReadOnly: true}},
	}
	if err := s.Save(&State{ID: "a/b/c", Command: c}); err != nil {
		t.Fatal(err)
	}
	got, err := s.Load("a/b/c")
	if err != nil || !slices.Equal(got.Command.Devices, c.Devices) || !slices.Equal(got.Command.Mounts, c.Mounts) {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestOwnMounts_AreForOtherPaths(t *testing.T) {
	here, there := Device{"/dev/null", "/dev/null"}, Device{"/dev/null", "/dev/zigbee/tty"}
	for want, list := range map[bool][]Command{
		false: {{}, {Devices: []Device{here}}},
		true:  {{Devices: []Device{here, there}}, {Mounts: []Mount{{Source: "/a", Target: "/b"}}}},
	} {
		for _, c := range list {
			if c.OwnMounts() != want {
				t.Errorf("%+v: want %v", c, want)
			}
		}
	}
}

func TestStore_ReadsAnOlderVersion(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	if err := os.MkdirAll(s.TaskDir("a/b/c"), 0o700); err != nil {
		t.Fatal(err)
	}
	old := `{"version":0,"id":"a/b/c","a_field_that_went":1}`
	if err := os.WriteFile(filepath.Join(s.TaskDir("a/b/c"), "task.json"), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	if st, err := s.Load("a/b/c"); err != nil || st.ID != "a/b/c" {
		t.Errorf("%+v, %v", st, err)
	}
}
