package task

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func newRecord(t *testing.T, s Store, id string) (fd int) {
	t.Helper()
	if err := s.Save(&State{ID: id}); err != nil {
		t.Fatal(err)
	}
	fd, err := NewRecord(s.Record(id))
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestRecord_TellsALauncherFromAProgram(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	path := s.Record("a/b/c")
	want := func(when string, want Progress) {
		t.Helper()
		if got := ReadProgress(path); got != want {
			t.Errorf("%s: progress %d, want %d", when, got, want)
		}
	}
	want("nothing there", ProgressUnknown)
	fd := newRecord(t, s, "a/b/c")
	dup, err := unix.Dup(fd) // the launcher's
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	want("launcher at work", ProgressLaunching)
	want("asked once more", ProgressLaunching)
	if _, err := unix.Pwrite(dup, []byte{RecordMark}, 0); err != nil {
		t.Fatal(err)
	}
	want("launcher in execve", ProgressLaunching)
	unix.Close(dup)
	want("executed", ProgressExecuted)
	if err := s.SaveExit("a/b/c", &Exit{Code: 7}); err != nil {
		t.Fatal(err)
	}
	want("ended", ProgressExecuted)
	if err := os.Truncate(path, 5); err != nil {
		t.Fatal(err)
	}
	want("truncated", ProgressUnknown)
	unix.Close(newRecord(t, s, "a/b/c"))
	want("launcher that ended", ProgressNever)
}

// The one file holds both, and a task that has ended was executed all the same.
func TestRecord_NeedsNoMoreSpaceForTheExit(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	unix.Close(newRecord(t, s, "a/b/c"))
	before, err := os.Stat(s.Record("a/b/c"))
	if err != nil {
		t.Fatal(err)
	}
	for _, reason := range []string{"", "it ended unseen", strings.Repeat("\x01ä\"", 10_000)} {
		at := time.Now()
		want := Exit{Code: 1, Signal: 2, OOMKilled: true, OOMKills: 3, Lost: true, Reason: reason, At: at}
		if err := s.SaveExit("a/b/c", &want); err != nil {
			t.Fatal(err)
		}
		got := s.LoadExit("a/b/c")
		if got == nil || !strings.HasPrefix(reason, strings.TrimRight(got.Reason, "�")) || !got.At.Equal(at) || reason != "" && got.Reason == "" {
			t.Fatalf("got %+v", got)
		}
		got.Reason, got.At, want.Reason, want.At = "", at, "", at
		if *got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	after, err := os.Stat(s.Record("a/b/c"))
	if err != nil || after.Size() != before.Size() {
		t.Errorf("%d bytes, %d before, %v", after.Size(), before.Size(), err)
	}
	if files, _ := os.ReadDir(s.TaskDir("a/b/c")); len(files) != 2 {
		t.Errorf("files: %v", files)
	}
}

func TestRecord_IgnoresAnIncompleteExit(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	unix.Close(newRecord(t, s, "a/b/c"))
	if err := s.SaveExit("a/b/c", &Exit{Code: 7}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(s.Record("a/b/c"))
	if err != nil {
		t.Fatal(err)
	}
	end := len(strings.TrimRight(string(whole), "\x00"))
	for i := exitAt; i < end; i++ {
		torn := append([]byte{}, whole...)
		torn[i] ^= 1
		for name, content := range map[string][]byte{"a byte is another": torn, "the rest is missing": append(whole[:i:i], make([]byte, recordSize-i)...), "cut": whole[:i]} {
			if err := os.WriteFile(s.Record("a/b/c"), content, 0o600); err != nil {
				t.Fatal(err)
			}
			if e := s.LoadExit("a/b/c"); e != nil {
				t.Errorf("%s, at %d: %+v", name, i, e)
			}
		}
	}
}

func TestRecord_ReadsAnEarlierVersion(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	if err := s.Save(&State{ID: "a/b/c"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.TaskDir("a/b/c"), "exit.json"), []byte(`{"code":0,"signal":9}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if e := s.LoadExit("a/b/c"); e == nil || e.Signal != 9 {
		t.Errorf("got %+v", e)
	}
	// and a task that it started is recorded here when it ends
	if err := s.SaveExit("a/b/c", &Exit{Code: 7}); err != nil {
		t.Fatal(err)
	}
	if e := s.LoadExit("a/b/c"); e == nil || e.Code != 7 {
		t.Errorf("got %+v", e)
	}
}
