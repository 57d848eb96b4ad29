// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// TestMain runs a helper process instead of the tests if LOGS_TEST_HELPER names one.
func TestMain(m *testing.M) {
	switch os.Getenv("LOGS_TEST_HELPER") {
	case "":
		os.Exit(m.Run())
	case "pump": // a supervisor; arguments: fifo, alloc dir, max file size
		size, _ := strconv.ParseInt(os.Args[3], 10, 64)
		fd, err := OpenReadEnd(os.Args[1])
		if err != nil {
			panic(err)
		}
		s, err := Open(fd, Config{AllocDir: os.Args[2], Name: "web.stdout", MaxFiles: 100000, MaxFileSize: size})
		if err != nil {
			panic(err)
		}
		s.noSplice = os.Getenv("LOGS_TEST_NOSPLICE") != ""
		pump(s)
	// a task; arguments: count, bytes per line, lines per second, and optionally a file. Once the file exists, the task
	// writes the number of its lines to it and ends.
	case "lines":
		count, _ := strconv.Atoi(os.Args[1])
		size, _ := strconv.Atoi(os.Args[2])
		rate, _ := strconv.Atoi(os.Args[3])
		start := time.Now()
		i := 0
		enough := func() bool {
			if len(os.Args) <= 4 {
				return i == count
			}
			for i == count || i%100 == 99 { // look for the file every 100 lines; wait for it after the last line
				if _, err := os.Stat(os.Args[4]); err == nil {
					if err := os.WriteFile(os.Args[4], []byte(strconv.Itoa(i)), 0o600); err != nil {
						panic(err)
					}
					return true
				}
				if i < count {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			return false
		}
		for ; !enough(); i++ {
			if rate > 0 {
				if ahead := time.Duration(i)*time.Second/time.Duration(rate) - time.Since(start); ahead > time.Millisecond/2 {
					time.Sleep(ahead)
				}
			}
			if _, err := os.Stdout.WriteString(fmt.Sprintf("%0*d\n", size-1, i)); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(0)
}

// pump is a minimal event loop that runs until the stream has ended.
func pump(s *Stream) (events []string) {
	for {
		r := s.Pump(time.Now())
		events = append(events, r.Events...)
		switch r.Next {
		case Ended:
			return events
		case Later:
			time.Sleep(time.Until(r.At))
		case Wait:
			p := []unix.PollFd{{Fd: int32(s.FD()), Events: unix.POLLIN}}
			retry(func() (int, error) { return unix.Poll(p, -1) })
		}
	}
}

func helper(t testing.TB, mode string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "LOGS_TEST_HELPER="+mode)
	cmd.Stderr = os.Stderr
	return cmd
}

// allocDir makes alloc/logs as Nomad does, writable for all users.
func allocDir(t testing.TB) (alloc, logs string) {
	t.Helper()
	alloc = t.TempDir()
	logs = filepath.Join(alloc, "alloc", "logs")
	must.NoError(t, os.MkdirAll(logs, 0o777))
	must.NoError(t, os.Chmod(logs, 0o777))
	return alloc, logs
}

func fifo(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stdout")
	must.NoError(t, MakeFIFO(path, -1, -1))
	return path
}

// stream opens a task's end and a stream on a new FIFO; both are closed at the end of the test.
func stream(t testing.TB, cfg Config) (task *os.File, s *Stream) {
	t.Helper()
	path := fifo(t)
	task, err := OpenTaskEnd(path)
	must.NoError(t, err)
	t.Cleanup(func() { task.Close() })
	fd, err := OpenReadEnd(path)
	must.NoError(t, err)
	if cfg.Name == "" {
		cfg.Name = "web.stdout"
	}
	s, err = Open(fd, cfg)
	must.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return task, s
}

// put writes p in parts that fit into the FIFO, and drains the FIFO after each part.
func put(t testing.TB, task *os.File, s *Stream, p []byte) {
	t.Helper()
	for len(p) > 0 {
		n := min(len(p), 60<<10)
		_, err := task.Write(p[:n])
		must.NoError(t, err)
		p = p[n:]
		r := s.Drain(time.Now())
		must.Eq(t, Ended, r.Next, must.Sprintf("drain: %+v", r))
		must.SliceEmpty(t, r.Events, must.Sprintf("drain: %+v", r))
	}
}

// concatenation returns the contents of all files, in the order of their numbers, and the sorted names. It does not use
// the package's own code.
func concatenation(t testing.TB, logs string) (all []byte, names []string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(logs, "web.stdout.*"))
	must.NoError(t, err)
	index := func(s string) int {
		n, err := strconv.Atoi(s[strings.LastIndex(s, ".")+1:])
		must.NoError(t, err)
		return n
	}
	sort.Slice(names, func(i, j int) bool { return index(names[i]) < index(names[j]) })
	for _, n := range names {
		b, err := os.ReadFile(n)
		must.NoError(t, err)
		all = append(all, b...)
	}
	return all, names
}

func equal(t testing.TB, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	t.Fatalf("%d bytes, want %d; the first difference is at %d", len(got), len(want), i)
}

// numbered checks that the lines count from 0 to n-1.
func numbered(t testing.TB, all []byte, n int) {
	t.Helper()
	sc := bufio.NewScanner(bytes.NewReader(all))
	i := 0
	for ; sc.Scan(); i++ {
		if got, err := strconv.Atoi(sc.Text()); err != nil || got != i {
			t.Fatalf("line %d is %q", i, sc.Text())
		}
	}
	must.Eq(t, n, i, must.Sprintf("%d lines", i))
}

// numbersIn returns the numbers of the files of one stream ("web.stderr") in a directory.
func numbersIn(dir, name string) ([]int64, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return listed(d, name)
}
