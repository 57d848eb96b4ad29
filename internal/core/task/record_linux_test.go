// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func newRecord(t *testing.T, s Store, id string) (fd int) {
	t.Helper()
	must.NoError(t, s.Save(&State{ID: id}))
	fd, err := NewRecord(s.Record(id))
	must.NoError(t, err)
	return fd
}

func TestRecord_DistinguishesLauncherFromProgram(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	path := s.Record("a/b/c")
	want := func(when string, want Progress) {
		t.Helper()
		test.Eq(t, want, ReadProgress(path), test.Sprintf("%s: progress", when))
	}
	want("no record", ProgressUnknown)
	fd := newRecord(t, s, "a/b/c")
	dup, err := unix.Dup(fd) // the launcher's descriptor
	must.NoError(t, err)
	unix.Close(fd)
	want("launcher at work", ProgressLaunching)
	want("read again", ProgressLaunching)
	_, err = unix.Pwrite(dup, []byte{RecordMark}, 0)
	must.NoError(t, err)
	want("launcher in execve", ProgressLaunching)
	unix.Close(dup)
	want("executed", ProgressExecuted)
	must.NoError(t, s.SaveExit("a/b/c", &Exit{Code: 7}))
	want("ended", ProgressExecuted)
	must.NoError(t, os.Truncate(path, 5))
	want("truncated", ProgressUnknown)
	unix.Close(newRecord(t, s, "a/b/c"))
	want("launcher that ended", ProgressNever)
}

// A record that was truncated at any byte contains the complete exit or none.
func TestRecord_TruncationNeverAltersTheExit(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	unix.Close(newRecord(t, s, "a/b/c"))
	want := Exit{Code: 7, At: time.Now().Truncate(time.Second)}
	must.NoError(t, s.SaveExit("a/b/c", &want))
	whole, err := os.ReadFile(s.Record("a/b/c"))
	must.NoError(t, err)
	known := 0
	for n := range len(whole) + 1 {
		must.NoError(t, os.WriteFile(s.Record("a/b/c"), whole[:n], 0o600))
		got := s.LoadExit("a/b/c")
		if got == nil {
			continue
		}
		known++
		must.True(t, got.At.Equal(want.At), must.Sprintf("%d of %d bytes: %+v", n, len(whole), got))
		got.At = want.At
		must.Eq(t, want, *got, must.Sprintf("%d of %d bytes", n, len(whole)))
	}
	must.Positive(t, known, must.Sprint("the whole record has no exit: the test tests nothing"))
}

func TestRecord_NeedsNoMoreSpaceForTheExit(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	unix.Close(newRecord(t, s, "a/b/c"))
	before, err := os.Stat(s.Record("a/b/c"))
	must.NoError(t, err)
	for _, reason := range []string{"", "it ended unseen", strings.Repeat("\x01ä\"", 10_000)} {
		at := time.Now()
		want := Exit{Code: 1, Signal: 2, OOMKilled: true, OOMKills: 3, Lost: true, Reason: reason, At: at}
		must.NoError(t, s.SaveExit("a/b/c", &want))
		got := s.LoadExit("a/b/c")
		if got == nil || !strings.HasPrefix(reason, strings.TrimRight(got.Reason, "�")) || !got.At.Equal(at) ||
			reason != "" && got.Reason == "" {
			t.Fatalf("got %+v", got)
		}
		got.Reason, got.At, want.Reason, want.At = "", at, "", at
		test.EqOp(t, want, *got, test.Sprintf("got %+v", got))
	}
	after, err := os.Stat(s.Record("a/b/c"))
	if err != nil || after.Size() != before.Size() {
		t.Errorf("%d bytes, %d before, %v", after.Size(), before.Size(), err)
	}
	files, _ := os.ReadDir(s.TaskDir("a/b/c"))
	test.SliceLen(t, 2, files, test.Sprint("files"))
}

func TestRecord_IgnoresAnIncompleteExit(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	unix.Close(newRecord(t, s, "a/b/c"))
	must.NoError(t, s.SaveExit("a/b/c", &Exit{Code: 7}))
	whole, err := os.ReadFile(s.Record("a/b/c"))
	must.NoError(t, err)
	end := len(strings.TrimRight(string(whole), "\x00"))
	for i := exitAt; i < end; i++ {
		torn := append([]byte{}, whole...)
		torn[i] ^= 1
		for name, content := range map[string][]byte{"a byte differs": torn,
			"the rest is missing": append(whole[:i:i], make([]byte, recordSize-i)...), "cut": whole[:i]} {
			must.NoError(t, os.WriteFile(s.Record("a/b/c"), content, 0o600))
			test.Nil(t, s.LoadExit("a/b/c"), test.Sprintf("%s, at %d", name, i))
		}
	}
}
