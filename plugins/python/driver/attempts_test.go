// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestAttempts_TakeTheNewestInterpreterWithAllWheels(t *testing.T) {
	const tag = "import sys; from sysconfig import *; abi, at = get_config_var('SOABI'), get_platform()\n" +
		"print('pp%d%d-%s-%s' % (*sys.version_info[:2], '_'.join(abi.split('-')[:2]), at.replace('-', '_')), end='')"
	out, err := exec.Command("/usr/bin/pypy3", "-c", tag).Output()
	if err != nil {
		t.Skip("there is no pypy3 in /usr/bin: ", err)
	}
	wheels := t.TempDir()
	moon.Write(t, wheels)
	wheeltest.Wheel{Name: "old-tool", Version: "1.0", Tag: string(out)}.Write(t, wheels)
	handler := wheeltest.Handler(wheels)
	var asked atomic.Int32
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		handler.ServeHTTP(w, r)
	}))
	defer index.Close()
	withUV(t, func(t *testing.T, a *agent) {
		const config = "code = \"import sys; print(sys.implementation.name, sys.prefix)\"\nrequirements = " +
			"[\"moon-phase\", \"old-tool\"]\n"
		first := a.task(config, nil)
		out := a.runs(first)
		test.StrHasPrefix(t, "pypy "+a.dir, out)
		a.says(first, "the node's other interpreters are tried, as there is none for CPython 3.")
		a.says(first, " for PyPy 3.")
		asked.Store(0)
		second := a.task(config, nil)
		must.Eq(t, out, a.runs(second))
		test.Eq(t, 0, asked.Load())
		a.says(second, ": cache hit")

		if err := a.refused(a.task(config+"python = \"/usr/bin/python3\"", nil)); strings.Contains(err.Error(), "PyPy") {
			t.Errorf("where PyPy does not fit: %v", err)
		}
		wrong := a.task("code = \"1\"\nlock = \"local/wrong.txt\"",
			map[string]string{"wrong.txt": "moon-phase==1.2 --hash=sha256:" + strings.Repeat("0", 64) + "\n"})
		if err := a.refused(wrong); strings.Contains(err.Error(), "PyPy") {
			t.Errorf("where a file has another hash: %v", err)
		}
		err := a.refused(a.task("code = \"1\"\nrequirements = [\"moon-phase==7\"]", nil))
		must.StrContains(t, err.Error(), "moon-phase", must.Sprintf("where there is none: %v", err))
		test.StrContains(t, err.Error(), "and it can't be for PyPy 3.",
			test.Sprintf("where there is none: %v", err))
	}, func(c *Config) { c.Offline, c.IndexURL = false, index.URL+"/simple" })
}

func TestAttempts_ReportTheFirstError(t *testing.T) {
	if _, err := exec.LookPath("/usr/bin/pypy3"); err != nil {
		t.Skip("there is no pypy3 in /usr/bin: ", err)
	}
	wheels := t.TempDir()
	moon.Write(t, wheels)
	handler := wheeltest.Handler(wheels)
	var late atomic.Int32
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store") // each interpreter asks
		if strings.Contains(r.UserAgent(), "PyPy") {
			late.Add(1)
			<-r.Context().Done()
			return
		}
		handler.ServeHTTP(w, r)
	}))
	defer index.Close()
	a := start(t, with(uv(t)), func(c *Config) {
		c.Offline, c.IndexURL, c.BuildTimeout = false, index.URL+"/simple",
			"8s"
	})
	err := a.refused(a.task("code = \"1\"\nrequirements = [\"moon-phase==7\"]", nil))
	if late.Load() == 0 || !strings.Contains(err.Error(), "moon-phase==7") || structs.IsRecoverable(err) {
		t.Errorf("the index was asked %d times for PyPy: %v", late.Load(), err)
	}
}

func TestAttempts_RetryUnsuitedInterpretersLater(t *testing.T) {
	final := &install.Error{Words: "no wheel"}
	soon := &install.Error{Cause: install.Unreachable, Words: "gone"}
	newest, older := key{secret: "3.13"}, key{secret: "3.11"}
	python := interpreter.Interpreter{Implementation: "cpython", Version: "3.13.0"}
	var known unsuited
	begin := func() attempts { return attempts{unsuited: &known, again: time.Hour} }

	a := begin()
	must.False(t, a.skips(newest, false), must.Sprint("before anything is known"))
	must.True(t, a.failed(newest, python, final), must.Sprint("a final failure is followed by the next interpreter"))
	test.False(t, a.failed(older, python, soon), test.Sprint("a temporary failure is not"))
	test.False(t, a.failed(older, python, &install.Error{Cause: install.Locked, Words: "another hash"}),
		test.Sprint("a file with another hash is followed by another interpreter"))
	if a = begin(); a.skips(newest, false) {
		t.Error("it is skipped before the other was built")
	}
	a.failed(newest, python, final)
	a.succeeded()
	if a = begin(); !a.skips(newest, false) || a.skips(older, true) {
		t.Error("it is not skipped when the other was built")
	}
	a.anew = true
	test.False(t, a.skips(newest, false), test.Sprint("it is skipped where the job wants everything anew"))
	known.since.Store(newest.digest(), time.Now().Add(-2*time.Hour))
	if a = begin(); a.skips(newest, false) {
		t.Error("it is skipped indefinitely")
	}
	test.True(t, a.failed(newest, python, soon),
		test.Sprint("an index that does not answer takes away the environment that there is"))
	known.since.Store(newest.digest(), time.Now())
	a = begin()
	a.skips(newest, false)
	a.failed(older, python, final)
	must.ErrorIs(t, a.err(), final, must.Sprint("when nothing can be built any more"))
	test.True(t, known.at(newest.digest()).IsZero(), test.Sprint("when nothing can be built any more"))
}
