// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// logDir makes an allocation's directory, and returns it and its log directory.
func logDir(t *testing.T) (alloc, dir string) {
	t.Helper()
	alloc = t.TempDir()
	dir = filepath.Join(alloc, "alloc", "logs")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return alloc, dir
}

func addTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// wantRead reads once and compares the result.
func wantRead(t *testing.T, r *Reader, number int64, text string) {
	t.Helper()
	b := make([]byte, 100)
	of, n, err := r.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	if string(b[:n]) != text || n > 0 && of != number {
		t.Fatalf("got %q of file %d, want %q of file %d", b[:n], of, text, number)
	}
}

func TestReader_FollowsFilesInOrder(t *testing.T) {
	alloc, dir := logDir(t)
	r := NewReader(alloc, "web.stdout", 0, 0)
	defer r.Close()
	wantRead(t, r, 0, "") // no file exists yet
	addTo(t, filepath.Join(dir, "web.stdout.0"), "one\n")
	addTo(t, filepath.Join(dir, "web.stderr.0"), "another stream\n")
	wantRead(t, r, 0, "one\n")
	wantRead(t, r, 0, "")
	addTo(t, filepath.Join(dir, "web.stdout.0"), "two\n")
	addTo(t, filepath.Join(dir, "web.stdout.1"), "three\n")
	wantRead(t, r, 0, "two\n") // the rest of a file is read before the next file
	wantRead(t, r, 1, "three\n")
	addTo(t, filepath.Join(dir, "web.stdout.3"), "five\n") // there is no file 2, as if it had been removed unread
	wantRead(t, r, 3, "five\n")
	wantRead(t, r, 3, "")
}

func TestReader_StartsAtAPosition(t *testing.T) {
	alloc, dir := logDir(t)
	addTo(t, filepath.Join(dir, "web.stdout.4"), "old\nnew\n")
	for _, c := range []struct {
		name           string
		number, offset int64
		text           string
	}{
		{"within the file", 4, 4, "new\n"},
		{"at the end of the file", 4, 8, ""},
		{"in a file that is gone", 2, 3, "old\nnew\n"},
		{"in a file that does not exist yet", 5, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := NewReader(alloc, "web.stdout", c.number, c.offset)
			defer r.Close()
			wantRead(t, r, 4, c.text)
		})
	}
}

func TestReader_ReadsNothingThatATaskHasPlanted(t *testing.T) {
	alloc, dir := logDir(t)
	secret := filepath.Join(t.TempDir(), "secret")
	addTo(t, secret, "secret")
	if err := os.Symlink(secret, filepath.Join(dir, "web.stdout.0")); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(secret, filepath.Join(dir, "web.stdout.1")); err != nil {
		t.Fatal(err)
	}
	addTo(t, filepath.Join(dir, "web.stdout.2"), "a log\n")
	r := NewReader(alloc, "web.stdout", 0, 0)
	defer r.Close()
	wantRead(t, r, 2, "a log\n")

	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(secret), dir); err != nil {
		t.Fatal(err)
	}
	other := NewReader(alloc, "web.stdout", 0, 0)
	defer other.Close()
	if _, _, err := other.Read(make([]byte, 10)); err == nil {
		t.Error("a directory that is a symbolic link was read")
	}
}

func TestCopy_HasTheSameFiles(t *testing.T) {
	from, fromDir := logDir(t)
	to, toDir := logDir(t)
	addTo(t, filepath.Join(fromDir, "web.stdout.7"), "first\n")
	carry := func() {
		t.Helper()
		number, size := End(to, "web.stdout")
		r, c := NewReader(from, "web.stdout", number, size), NewCopy(to, "web.stdout", 2, 100)
		defer r.Close()
		defer c.Close()
		for b := make([]byte, 4); ; {
			number, n, err := r.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				return
			}
			if _, err := c.Write(number, b[:n]); err != nil {
				t.Fatal(err)
			}
		}
	}
	carry()
	addTo(t, filepath.Join(fromDir, "web.stdout.7"), "second\n")
	addTo(t, filepath.Join(fromDir, "web.stdout.8"), "third\n")
	addTo(t, filepath.Join(fromDir, "web.stdout.9"), "fourth\n")
	carry() // resumes at the end
	carry() // finds nothing new
	numbers, err := numbersIn(toDir, "web.stdout")
	if err != nil || len(numbers) != 2 || numbers[0] != 8 || numbers[1] != 9 {
		t.Fatalf("the copy has files %v (%v), want the 2 newest", numbers, err)
	}
	for name, want := range map[string]string{"web.stdout.8": "third\n", "web.stdout.9": "fourth\n"} {
		if got, err := os.ReadFile(filepath.Join(toDir, name)); string(got) != want {
			t.Errorf("%s has %q (%v), want %q", name, got, err, want)
		}
	}
}

func TestCopy_RefusesInvalidWritesOfAnotherMachine(t *testing.T) {
	alloc, dir := logDir(t)
	secret := filepath.Join(t.TempDir(), "secret")
	addTo(t, secret, "secret")
	if err := os.Link(secret, filepath.Join(dir, "web.stdout.9")); err != nil {
		t.Fatal(err)
	}
	c := NewCopy(alloc, "web.stdout", 3, 100)
	defer c.Close()
	for _, step := range []struct {
		name   string
		number int64
		data   string
		why    string
	}{
		{"a negative number", -1, "x", "older"},
		{"a number below the newest", 3, "x", "older"},
		{"a name that is taken", 9, "x", "not a log file"},
		{"a file that is too large", 10, strings.Repeat("x", 101), "exceed"},
	} {
		n, err := c.Write(step.number, []byte(step.data))
		if err == nil || n != 0 || !strings.Contains(err.Error(), step.why) {
			t.Errorf("%s: %d bytes were written, and the error is %v", step.name, n, err)
		}
	}
	if b, err := os.ReadFile(secret); string(b) != "secret" {
		t.Errorf("the other file has %q now (%v)", b, err)
	}
}
