// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// text returns at least n bytes of lines with random lengths below longest.
func text(n, longest int) []byte {
	r := rand.New(rand.NewPCG(1, uint64(n+longest)))
	var b bytes.Buffer
	for b.Len() < n {
		for range r.IntN(longest) {
			b.WriteByte(byte('a' + r.IntN(26)))
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func TestStream_KeepsOutputThroughRotations(t *testing.T) {
	for name, c := range map[string]struct {
		data    []byte
		size    int64
		largest int64 // no file may be larger
		atLines bool  // all files end at a line's end
	}{
		"one file":                    {text(300<<10, 100), 1 << 20, 1 << 20, true},
		"files of 64 KiB":             {text(1<<20, 100), 64 << 10, 64 << 10, true},
		"files of an odd size":        {text(1<<20, 100), 10007, 10007, true},
		"files of 200 bytes":          {text(50<<10, 100), 200, 200, true},
		"a size smaller than a line":  {text(20<<10, 300), 40, 300, true},
		"files of one byte":           {text(2<<10, 10), 1, 10, true},
		"lines longer than the size":  {text(1<<20, 40<<10), 8 << 10, 40 << 10, true},
		"lines longer than the slack": {text(2<<20, 200<<10), 8 << 10, 8<<10 + lineSlack, false},
		"no line end at all":          {bytes.Repeat([]byte("0123456789abc"), 50000), 10000, 10000 + lineSlack, false},
		"zeros":                       {make([]byte, 500<<10), 1000, 1000 + lineSlack, false},
	} {
		for _, splice := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, splice %v", name, splice), func(t *testing.T) {
				alloc, logs := allocDir(t)
				task, s := stream(t, Config{AllocDir: alloc, MaxFiles: 1 << 20, MaxFileSize: c.size})
				s.noSplice = !splice
				put(t, task, s, c.data)
				all, names := concatenation(t, logs)
				equal(t, all, c.data)
				want := len(c.data) / int(c.largest)
				test.False(t, len(names) < want, test.Sprintf("%d files, want at least %d", len(names), want))
				for i, n := range names {
					b, err := os.ReadFile(n)
					must.NoError(t, err)
					test.Eq(t, "web.stdout."+strconv.Itoa(i), filepath.Base(n),
						test.Sprintf("file %d is %s", i, n))
					test.False(t, int64(len(b)) > c.largest,
						test.Sprintf("%s has %d bytes, limit %d", n, len(b), c.largest))
					if c.atLines && len(b) > 0 && b[len(b)-1] != '\n' {
						t.Errorf("%s ends within a line", n)
					}
				}
			})
		}
	}
}

func TestStream_RotatesAtLineEndsAfterSingleByteWrites(t *testing.T) {
	alloc, logs := allocDir(t)
	task, s := stream(t, Config{AllocDir: alloc, MaxFiles: 1000, MaxFileSize: 50})
	data := text(2000, 30)
	for i := range data {
		put(t, task, s, data[i:i+1])
	}
	all, names := concatenation(t, logs)
	equal(t, all, data)
	for _, n := range names[:len(names)-1] {
		b, err := os.ReadFile(n)
		must.NoError(t, err)
		must.Eq(t, '\n', b[len(b)-1], must.Sprintf("%s has %d bytes and ends with", n, len(b)))
		test.False(t, len(b) > 50+30, test.Sprintf("%s has %d bytes and ends with", n, len(b)))
	}
}

func TestStream_KeepsTheNewestFiles(t *testing.T) {
	alloc, logs := allocDir(t)
	task, s := stream(t, Config{AllocDir: alloc, MaxFiles: 3, MaxFileSize: 1000})
	// files of other tasks and streams must stay
	for _, n := range []string{"web.stderr.0", "web2.stdout.0", "web.stdout.old.0", ".web.stdout.fifo"} {
		must.NoError(t, os.WriteFile(filepath.Join(logs, n), nil, 0o644))
	}
	data := text(20<<10, 80)
	put(t, task, s, data)
	entries, err := os.ReadDir(logs)
	must.NoError(t, err)
	test.SliceLen(t, 4+3, entries, test.Sprintf("%d files, want 7", len(entries)))
	must.NoError(t, os.Remove(filepath.Join(logs, "web.stdout.old.0")))
	all, names := concatenation(t, logs)
	equal(t, all, data[len(data)-len(all):])
	must.SliceLen(t, 3, names, must.Sprintf("%d bytes in", len(all)))
	test.False(t, len(all) < 2000, test.Sprintf("%d bytes in", len(all)))
}

func TestOpen_AppendsToTheNewestFile(t *testing.T) {
	alloc, logs := allocDir(t)
	for i, text := range map[int]string{2: "two\n", 9: "nine\n", 10: "ten\n"} {
		must.NoError(t, os.WriteFile(filepath.Join(logs, fmt.Sprintf("web.stdout.%d", i)), []byte(text), 0o644))
	}
	task, s := stream(t, Config{AllocDir: alloc})
	put(t, task, s, []byte("more\n"))
	all, names := concatenation(t, logs)
	equal(t, all, []byte("two\nnine\nten\nmore\n"))
	test.SliceLen(t, 3, names)
}

func TestOpen_RemovesSurplusFiles(t *testing.T) {
	alloc, logs := allocDir(t)
	for i := range 8 {
		must.NoError(t, os.WriteFile(filepath.Join(logs, fmt.Sprintf("web.stdout.%d", i)), []byte("x"), 0o644))
	}
	stream(t, Config{AllocDir: alloc, MaxFiles: 2})
	_, names := concatenation(t, logs)
	must.SliceLen(t, 2, names)
	test.Eq(t, "web.stdout.7", filepath.Base(names[1]))
}

func TestOpen_MakesFilesWithLogmonsMode(t *testing.T) {
	alloc, logs := allocDir(t)
	stream(t, Config{AllocDir: alloc})
	fi, err := os.Stat(filepath.Join(logs, "web.stdout.0"))
	must.NoError(t, err)
	old := unix.Umask(0)
	unix.Umask(old)
	test.Eq(t, 0o644&^os.FileMode(old), fi.Mode(), test.Sprint("mode"))
}

func TestStream_NoticesTruncatedAndRemovedFiles(t *testing.T) {
	alloc, logs := allocDir(t)
	task, s := stream(t, Config{AllocDir: alloc})
	put(t, task, s, []byte("first\n"))
	must.NoError(t, os.Truncate(filepath.Join(logs, "web.stdout.0"), 0))
	put(t, task, s, []byte("second\n"))
	all, _ := concatenation(t, logs)
	equal(t, all, []byte("second\n")) // without a hole at the beginning of the file

	must.NoError(t, os.Remove(filepath.Join(logs, "web.stdout.0")))
	put(t, task, s, []byte("third\n"))
	all, names := concatenation(t, logs)
	equal(t, all, []byte("third\n"))
	if len(names) != 1 || filepath.Base(names[0]) != "web.stdout.1" { // a reader of file 0 continues with file 1
		t.Error(names)
	}
}

func TestStream_ContinuesInARenamedDirectory(t *testing.T) {
	alloc, logs := allocDir(t)
	task, s := stream(t, Config{AllocDir: alloc, MaxFileSize: 1000, MaxFiles: 100})
	elsewhere := t.TempDir()
	data := text(5<<10, 80)
	put(t, task, s, data[:2<<10])
	must.NoError(t, os.Rename(logs, logs+".away"))
	must.NoError(t, os.Symlink(elsewhere, logs))
	put(t, task, s, data[2<<10:])
	all, _ := concatenation(t, logs+".away")
	equal(t, all, data)
	e, _ := os.ReadDir(elsewhere)
	test.SliceEmpty(t, e, test.Sprint("written through the symbolic link"))
}

func TestStream_SurvivesARemovedDirectory(t *testing.T) {
	alloc, logs := allocDir(t)
	task, s := stream(t, Config{AllocDir: alloc, MaxFileSize: 1000})
	must.NoError(t, os.RemoveAll(logs))
	now := time.Now()
	for i := range 300 {
		_, err := task.Write(text(500, 80))
		must.NoError(t, err)
		r := s.Drain(now.Add(time.Duration(i) * 10 * time.Millisecond))
		must.Eq(t, Ended, r.Next, must.Sprintf("write %d: %+v", i, r))
		must.Eq(t, (i == 0), (len(r.Events) > 0), must.Sprintf("write %d: %+v", i, r))
	}
	var st unix.Stat_t
	must.NoError(t, unix.Fstat(s.files.file, &st))
	test.False(t, st.Size > 2000, test.Sprintf("the removed file takes %d bytes", st.Size))

	must.NoError(t, os.MkdirAll(logs, 0o777)) // the stream must use the new directory
	_, err := task.WriteString("back\n")
	must.NoError(t, err)
	s.Drain(now.Add(time.Hour))
	all, _ := concatenation(t, logs)
	equal(t, all, []byte("back\n"))
}

// planted lists files that a task may put in the place of a log file.
var planted = map[string]struct {
	plant func(t *testing.T, path, victim string)
	stays bool // the file is not removed, and the next index is used
}{
	"a symbolic link":          {func(t *testing.T, p, v string) { must.NoError(t, os.Symlink(v, p)) }, false},
	"a dangling symbolic link": {func(t *testing.T, p, v string) { must.NoError(t, os.Symlink(v+".new", p)) }, false},
	"a fifo":                   {func(t *testing.T, p, v string) { must.NoError(t, unix.Mkfifo(p, 0o666)) }, false},
	"a socket": {func(t *testing.T, p,
		v string) {
		must.NoError(t, unix.Mknod(p, unix.S_IFSOCK|0o666, 0))
	}, false},
	"a hard link": {func(t *testing.T, p, v string) { must.NoError(t, os.Link(v, p)) }, true},
	"a directory": {func(t *testing.T, p, v string) { must.NoError(t, os.Mkdir(p, 0o755)) }, true},
	"a directory with files": {func(t *testing.T, p, v string) {
		must.NoError(t, os.MkdirAll(filepath.Join(p, "sub"), 0o755))
	}, true},
	"another user's file": {func(t *testing.T, p, v string) {
		must.NoError(t, os.WriteFile(p, []byte("theirs"), 0o666))
		if err := os.Chown(p, 1, 1); err != nil {
			t.Skipf("cannot give a file away: %v", err)
		}
	}, true},
}

func TestOpen_WritesToNoPlantedFile(t *testing.T) {
	for name, c := range planted {
		for _, when := range []string{"before the start", "before the rotation"} {
			t.Run(name+" "+when, func(t *testing.T) {
				alloc, logs := allocDir(t)
				victim := filepath.Join(alloc, "victim")
				must.NoError(t, os.WriteFile(victim, []byte("precious"), 0o600))
				index := 0
				if when == "before the rotation" {
					index = 1
				} else {
					c.plant(t, filepath.Join(logs, "web.stdout.0"), victim)
				}
				task, s := stream(t, Config{AllocDir: alloc, MaxFileSize: 8})
				if index == 1 {
					put(t, task, s, []byte("before\n"))
					c.plant(t, filepath.Join(logs, "web.stdout.1"), victim)
				}
				put(t, task, s, []byte("log line\n"))

				if b, _ := os.ReadFile(victim); string(b) != "precious" {
					t.Errorf("the victim now reads %q", b)
				}
				if _, err := os.Lstat(victim + ".new"); err == nil {
					t.Error("a file was made through the link")
				}
				if c.stays {
					_, err := os.Lstat(filepath.Join(logs, fmt.Sprintf("web.stdout.%d", index)))
					test.NoError(t, err)
					index++
				}
				path := filepath.Join(logs, fmt.Sprintf("web.stdout.%d", index))
				if fi, err := os.Lstat(path); err != nil || !fi.Mode().IsRegular() {
					t.Fatalf("%v, %v", fi, err)
				}
				b, err := os.ReadFile(path)
				must.NoError(t, err)
				equal(t, b, []byte("log line\n"))
			})
		}
	}
}

func TestOpen_SkipsManyPlantedDirectories(t *testing.T) {
	alloc, logs := allocDir(t)
	task, s := stream(t, Config{AllocDir: alloc, MaxFileSize: 8})
	for i := 1; i <= 5000; i++ {
		must.NoError(t, os.Mkdir(filepath.Join(logs, fmt.Sprintf("web.stdout.%d", i)), 0o755))
	}
	put(t, task, s, []byte("before\n"))
	put(t, task, s, []byte("log line\n"))
	if s.files.index <= 5000 || s.files.index > 10000 {
		t.Errorf("index %d", s.files.index)
	}
}

func TestOpen_LooksAtABoundedNumberOfEntries(t *testing.T) {
	alloc, logs := allocDir(t)
	for i := range maxListed + 2000 {
		must.NoError(t, unix.Mknod(filepath.Join(logs, fmt.Sprintf("web.stdout.%d", i)), unix.S_IFREG|0o644, 0))
	}
	numbers, err := numbersIn(logs, "web.stdout")
	must.NoError(t, err)
	test.Len(t, maxListed, numbers)
	test.True(t, slices.IsSorted(numbers))

	task, s := stream(t, Config{AllocDir: alloc})
	put(t, task, s, []byte("log line\n"))
	test.Less(t, maxListed+1, len(s.files.known))
}

func TestOpen_IgnoresImpossibleIndexes(t *testing.T) {
	alloc, logs := allocDir(t)
	for _, n := range []string{"9223372036854775807", "9999999999999999", "007", "+3", "-1", "x", ""} {
		must.NoError(t, os.WriteFile(filepath.Join(logs, "web.stdout."+n), nil, 0o644))
	}
	_, s := stream(t, Config{AllocDir: alloc})
	test.Eq(t, 0, s.files.index, test.Sprint("index"))
}

func TestOpen_RefusesALinkAsDirectory(t *testing.T) {
	for _, which := range []string{"alloc", "alloc/logs"} {
		t.Run(which, func(t *testing.T) {
			alloc, logs := allocDir(t)
			elsewhere := filepath.Join(t.TempDir(), "logs")
			must.NoError(t, os.Mkdir(elsewhere, 0o777))
			must.NoError(t, os.RemoveAll(filepath.Join(alloc, which)))
			target := elsewhere
			if which == "alloc" {
				target = filepath.Dir(elsewhere)
			}
			must.NoError(t, os.Symlink(target, filepath.Join(alloc, which)))

			path := fifo(t)
			task, err := OpenTaskEnd(path)
			must.NoError(t, err)
			defer task.Close()
			fd, err := OpenReadEnd(path)
			must.NoError(t, err)
			s, err := Open(fd, Config{AllocDir: alloc, Name: "web.stdout"})
			if err == nil || s == nil {
				t.Fatalf("%v, %v: want both a stream and an error", s, err)
			}
			defer s.Close()

			// the stream reports the error, retries, and resumes when the directory is valid
			_, err = task.WriteString("line\n")
			must.NoError(t, err)
			now := time.Now()
			r := s.Drain(now)
			must.Eq(t, Later, r.Next, must.Sprintf("%+v", r))
			must.SliceLen(t, 1, r.Events, must.Sprintf("%+v", r))
			must.StrHasPrefix(t, "stdout waits: ", r.Events[0], must.Sprintf("%+v", r))
			e, _ := os.ReadDir(elsewhere)
			test.SliceEmpty(t, e, test.Sprint("written through the symbolic link"))
			must.NoError(t, os.Remove(filepath.Join(alloc, which)))
			must.NoError(t, os.MkdirAll(logs, 0o777))
			r = s.Drain(now.Add(time.Second))
			must.Eq(t, Ended, r.Next, must.Sprintf("%+v", r))
			must.SliceEqOp(t, []string{"stdout resumed"}, r.Events, must.Sprintf("%+v", r))
			all, _ := concatenation(t, logs)
			equal(t, all, []byte("line\n"))
		})
	}
}

func TestOpen_RefusesBadConfigs(t *testing.T) {
	for name, cfg := range map[string]Config{
		"a relative directory": {AllocDir: "alloc", Name: "web.stdout"},
		"a name with a slash":  {AllocDir: "/", Name: "../web.stdout"},
		"no name":              {AllocDir: "/"},
	} {
		t.Run(name, func(t *testing.T) {
			if s, err := Open(-1, cfg); err == nil || s != nil {
				t.Errorf("%v, %v", s, err)
			}
		})
	}
}

func TestStream_LeaksNoDescriptor(t *testing.T) {
	alloc, _ := allocDir(t)
	path := fifo(t)
	must.NoError(t, peekOnce(t)) // makes the scratch pipe, which stays open
	before := testsupport.Descriptors(t)
	for range 20 {
		task, err := OpenTaskEnd(path)
		must.NoError(t, err)
		fd, err := OpenReadEnd(path)
		must.NoError(t, err)
		s, err := Open(fd, Config{AllocDir: alloc, Name: "web.stdout", MaxFileSize: 100, MaxFiles: 3})
		must.NoError(t, err)
		put(t, task, s, text(2000, 50))
		must.NoError(t, os.RemoveAll(filepath.Join(alloc, "alloc", "logs")))
		task.WriteString("lost\n")
		s.Drain(time.Now())
		must.NoError(t, os.Mkdir(filepath.Join(alloc, "alloc", "logs"), 0o777))
		s.Close()
		task.Close()
	}
	after := testsupport.Descriptors(t)
	test.Eq(t, before, after, test.Sprint("open descriptors"))
}

func peekOnce(t *testing.T) error {
	f, err := OpenTaskEnd(fifo(t))
	must.NoError(t, err)
	defer f.Close()
	f.WriteString("x")
	return peek(int(f.Fd()), 1, func([]byte) {})
}
