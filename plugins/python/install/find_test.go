// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

func TestFind_DoesNotTakeACanceledSearchForNoUV(t *testing.T) {
	python := interpreter.Interpreter{Path: "/usr/bin/python3", Pip: []string{"-m", "pip"}, PipVersion: "23.0.1"}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, want := range []string{"auto", "uv"} {
		i, err := install.Find(ended, want, "/bin/sh", builder(), []interpreter.Interpreter{python})
		test.ErrorIs(t, err, context.Canceled, test.Sprintf("%s: found %s", want, i.Name))
	}
}

func TestFind_DoesNotTakeABusyUVForNone(t *testing.T) {
	first, second := filepath.Join(t.TempDir(), "uv"), filepath.Join(t.TempDir(), "uv")
	t.Setenv("PATH", filepath.Dir(first)+":"+filepath.Dir(second))
	write := func(path, text string) {
		must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	}
	find := func(want string) (install.Installer, error) {
		return install.Find(
			t.Context(),
			want,
			"",
			nil,
			[]interpreter.Interpreter{{Path: "/usr/bin/python3", Pip: []string{"-m", "pip"}, PipVersion: "23.0.1"}},
		)
	}
	write(second, "echo uv 1.2.3")
	notKnown := func(why string) {
		for _, want := range []string{"auto", "uv"} {
			i, err := find(want)
			var e *install.NotKnownError
			must.True(t, errors.As(err, &e),
				must.Sprintf("%s, %s: found %s %s: %v", why, want, i.Name, i.Version, err))
			must.Eq(t, first, e.Path, must.Sprintf("%s, %s: found %s %s: %v", why, want, i.Name, i.Version, err))
			test.True(t, e.Temporary(),
				test.Sprintf("%s, %s: found %s %s: %v", why, want, i.Name, i.Version, err))
		}
	}
	mark := fmt.Sprintf("1000.%d%d", os.Getpid(), time.Now().UnixNano())
	write(first, "exec sleep "+mark)
	over := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() { // from outside, as the kernel does: it is the first process of its namespace
		for {
			for _, pid := range sleeping(mark) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
	notKnown("it was killed")
	close(over)
	killing.Wait()
	write(first, "echo uv 4.5.6")
	file, err := os.OpenFile(first, os.O_WRONLY, 0)
	must.NoError(t, err)
	notKnown("it is being written")
	must.NoError(t, file.Close())
	i, err := find("auto")
	must.NoError(t, err, must.Sprintf("found %s", i.Name))
	test.Eq(t, "4.5.6", i.Version, test.Sprintf("found %s", i.Name))
}

// sleeping are the processes that sleep for a time that no other does.
func sleeping(mark string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		if line, _ := os.ReadFile(file); string(line) == "sleep\x00"+mark+"\x00" {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func TestFind_ChoosesAsConfigured(t *testing.T) {
	p := newPlace(t)
	program := func(name, text string) string {
		path := filepath.Join(p.wheels, name, "uv")
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
		return path
	}
	good := program("good", "echo 'uv 9.8.7 (abc 2026-01-01)'")
	other := program("other", "echo something else")
	broken := program("broken", "exit 3")
	closed := program("closed", "echo uv 9.8.7")
	must.NoError(t, os.Chmod(closed, 0o644))
	python := interpreter.Interpreter{Path: "/usr/bin/python3", Pip: []string{"-m", "pip"}, PipVersion: "23.0.1"}
	bare := interpreter.Interpreter{Path: "/opt/python"}

	tests := []struct {
		name, want, uv, path string
		found                []interpreter.Interpreter
		is, says             string
		noUV                 string
	}{
		{name: "auto takes uv", want: "auto", uv: good, found: []interpreter.Interpreter{python}, is: "uv 9.8.7"},
		{
			name:  "auto takes pip where uv does not answer",
			want:  "auto",
			uv:    broken,
			found: []interpreter.Interpreter{bare, python},
			is:    "pip 23.0.1",
			noUV:  "exit status 3",
		},
		{
			name:  "auto takes pip where nobody may run uv",
			want:  "auto",
			uv:    closed,
			found: []interpreter.Interpreter{python},
			is:    "pip 23.0.1",
			noUV:  "permission denied",
		},
		{name: "uv of the PATH", want: "uv", path: filepath.Dir(other) + ":" + filepath.Dir(good), is: "uv 9.8.7"},
		{name: "uv that is another program", want: "uv", uv: other, says: "it is not uv"},
		{name: "uv that is not there", want: "uv", uv: "/nonexistent/uv", says: "/nonexistent/uv"},
		{name: "pip though there is uv", want: "pip", uv: good, found: []interpreter.Interpreter{python}, is: "pip 23.0.1"},
		{name: "no pip", want: "pip", found: []interpreter.Interpreter{bare}, says: "install python3-pip"},
		{name: "nothing", want: "auto", uv: broken, says: "no interpreter"},
		{name: "a word", want: "poetry", says: "none of auto, uv, pip"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.path != "" {
				t.Setenv("PATH", test.path)
			}
			i, err := install.Find(t.Context(), test.want, test.uv, builder(), test.found)
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Errorf("the error is %v", err)
				}
			} else if got := i.Name + " " + i.Version; err != nil || got != test.is {
				t.Errorf("found %s: %v", got, err)
			} else if (i.NoUV != nil) != (test.noUV != "") || i.NoUV != nil && !strings.Contains(i.NoUV.Error(), test.noUV) {
				t.Errorf("it says of uv: %v", i.NoUV)
			}
		})
	}
}

func TestInstaller_NamesItsTool(t *testing.T) {
	node := interpreter.Interpreter{Path: "/usr/bin/python3.11", Pip: []string{"-m", "pip"}, PipVersion: "23.0.1"}
	own := interpreter.Interpreter{Path: "/opt/python/3.14/bin/python3.14", Pip: []string{"-m", "pip"}, PipVersion: "25.3"}
	pip := install.Installer{Name: "pip", Version: "23.0.1", Python: node}
	for want, got := range map[string]string{
		"pip 23.0.1":                        pip.Tool(node),
		"pip 25.3":                          pip.Tool(own),
		"pip 23.0.1 of /usr/bin/python3.11": pip.Tool(interpreter.Interpreter{Path: "/opt/python/3.15/bin/python3.15"}),
		"uv 0.6.14":                         install.Installer{Name: "uv", Version: "0.6.14"}.Tool(own),
	} {
		test.Eq(t, want, got)
	}
}
