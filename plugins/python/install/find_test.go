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
)

func TestFind_DoesNotTakeACanceledSearchForNoUV(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := install.Find(ended, "/bin/sh", builder())
	test.ErrorIs(t, err, context.Canceled)
}

func TestFind_DoesNotTakeABusyUVForNone(t *testing.T) {
	first, second := filepath.Join(t.TempDir(), "uv"), filepath.Join(t.TempDir(), "uv")
	t.Setenv("PATH", filepath.Dir(first)+":"+filepath.Dir(second))
	write := func(path, text string) {
		must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	}
	write(second, "echo uv 1.2.3")
	notKnown := func(why string) {
		i, err := install.Find(t.Context(), "", nil)
		var e *install.NotKnownError
		must.True(t, errors.As(err, &e), must.Sprintf("%s: found %s: %v", why, i, err))
		must.Eq(t, first, e.Path, must.Sprintf("%s: %v", why, err))
		test.True(t, e.Temporary(), test.Sprintf("%s: %v", why, err))
	}
	mark := fmt.Sprintf("1000.%d%d", os.Getpid(), time.Now().UnixNano())
	write(first, "exec sleep "+mark)
	over := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() {
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
	i, err := install.Find(t.Context(), "", nil)
	must.NoError(t, err, must.Sprintf("found %s", i))
	test.Eq(t, "4.5.6", i.Version, test.Sprintf("found %s", i))
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

	tests := []struct{ name, uv, path, is, says string }{
		{name: "the configured one", uv: good, is: "uv 9.8.7"},
		{name: "one of the PATH", path: filepath.Dir(other) + ":" + filepath.Dir(good), is: "uv 9.8.7"},
		{name: "one that does not work", uv: broken, says: "exit status 3"},
		{name: "one that nobody may run", uv: closed, says: "permission denied"},
		{name: "another program", uv: other, says: "it is not uv"},
		{name: "one that is not there", uv: "/nonexistent/uv", says: "/nonexistent/uv"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.path != "" {
				t.Setenv("PATH", test.path)
			}
			i, err := install.Find(t.Context(), test.uv, builder())
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Errorf("the error is %v", err)
				}
			} else if err != nil || i.String() != test.is {
				t.Errorf("found %s: %v", i, err)
			}
		})
	}
}
