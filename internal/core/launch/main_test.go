// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// self is a copy of the test binary that every user can access.
var self string

// TestMain makes the test binary a launcher if its argument is "launch". With "supervise", it is a supervisor of one
// start, which tests run with other privileges or another environment.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "launch":
			Main()
		case "supervise":
			superviseOne()
		case "keyring":
			printKeyring()
		}
	}
	os.Exit(testMain(m))
}

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "outrider-launch-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		panic(err)
	}
	self = filepath.Join(dir, "launch.test")
	if err := os.WriteFile(self, b, 0o755); err != nil {
		panic(err)
	}
	if _, err := initProgram(); err != nil { // its file stays open, which nothingLeft would report in a test
		panic(err)
	}
	return m.Run()
}

// printKeyring prints the number of the session keyring. It creates one if none exists.
func printKeyring() {
	id, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true)
	fmt.Println(id, err)
	os.Exit(0)
}

// superviseOne starts the Spec that it reads from stdin. The program gets the stdout and stderr of this process.
func superviseOne() {
	var s Spec
	if err := json.NewDecoder(os.Stdin).Decode(&s); err != nil {
		panic(err)
	}
	p, err := Start(&s, [3]*os.File{nil, os.Stdout, os.Stderr}, nil)
	if err == nil {
		err = p.Started(context.Background())
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	var ws unix.WaitStatus
	_, _ = unix.Wait4(p.PID, &ws, 0, nil)
	os.Exit(ws.ExitStatus())
}

// ended is the result of a program that has ended.
type ended struct {
	pid    int
	out    string // stdout and stderr
	status unix.WaitStatus
}

func start(spec *Spec, cgroup *os.File) (*Process, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer w.Close()
	p, err := Start(spec, [3]*os.File{nil, w, w}, cgroup)
	if err != nil {
		r.Close()
		return nil, nil, err
	}
	return p, r, nil
}

func run(spec *Spec, cgroup *os.File) (ended, error) {
	p, r, err := start(spec, cgroup)
	if err != nil {
		return ended{}, err
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := p.Started(ctx); err != nil {
		return ended{}, err
	}
	out, err := io.ReadAll(r)
	if err != nil {
		return ended{}, err
	}
	e := ended{pid: p.PID, out: string(out)}
	_, err = unix.Wait4(p.PID, &e.status, 0, nil)
	unix.Close(p.TakePidFD())
	return e, err
}

func mustRun(t *testing.T, spec *Spec) ended {
	t.Helper()
	e, err := run(spec, nil)
	must.NoError(t, err)
	return e
}

// shell returns a Spec that runs a script of sh.
func shell(script string, args ...string) *Spec {
	return &Spec{
		Command: task.Command{
			Path: "/bin/sh",
			Args: slices.Concat([]string{"-c", script, "sh"}, args),
			Env:  []string{"PATH=/usr/bin:/bin"},
			Dir:  "/",
		},
	}
}

func ptr[T any](v T) *T { return &v }

// field returns the value of a line "name: value" or "name value" of a /proc file.
func field(t *testing.T, text, name string) string {
	t.Helper()
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, name); ok {
			return strings.Join(strings.Fields(strings.TrimPrefix(v, ":")), " ")
		}
	}
	t.Fatalf("no %q in:\n%s", name, text)
	return ""
}

// resources returns this process's number of fds, number of threads, and children, which a start must not leak.
func resources(t *testing.T) (fds, threads int, children string) {
	t.Helper()
	count := func(dir string) int {
		e, err := os.ReadDir(dir)
		must.NoError(t, err)
		return len(e)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	must.NoError(t, err)
	for _, e := range tasks {
		b, _ := os.ReadFile("/proc/self/task/" + e.Name() + "/children")
		children += string(b)
	}
	return count("/proc/self/fd"), len(tasks), children
}

// nothingLeft checks at the end of the test that no fd and no child is left.
func nothingLeft(t *testing.T) {
	t.Helper()
	runtime.GC()
	before, _, childrenBefore := resources(t)
	t.Cleanup(func() {
		after, _, children := resources(t)
		test.False(t, after > before, test.Sprintf("%d file descriptors before, %d after", before, after))
		test.Eq(t, childrenBefore, children, test.Sprintf("children left: %q, before", children))
	})
}
