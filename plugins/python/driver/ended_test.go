// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestReportExit_ShowsTheException(t *testing.T) {
	a := start(t)
	for name, c := range map[string]struct{ code, want string }{
		"sys.exit": {"import sys\nsys.exit('no settings')\n", "Python: exit code 1, last line on stderr: no settings"},
		"in a package": {"import runpy\nrunpy.run_path(__file__[:-6] + 'shop/util.py')\n",
			"Python: ValueError: closed (shop/util.py:2)"},
	} {
		const util = "def f():\n    raise ValueError('closed')\nf()\n"
		cfg := a.task(`script = "app.py"`, map[string]string{"app.py": c.code, "shop/util.py": util})
		_, r := a.run(cfg)
		test.NotEq(t, 0, r.ExitCode, test.Sprintf("%s: it succeeded: %+v", name, r))
		a.says(cfg, c.want)
	}
}

func TestReportExit_IgnoresTheLastLineOfAStoppedTask(t *testing.T) {
	a := start(t)
	cfg := a.task(`script = "app.py"`, map[string]string{"app.py": "import sys, time\ntry:\n    print('runs', " +
		"flush=True)\n" +
		"    time.sleep(600)\nexcept KeyboardInterrupt:\n    sys.exit('stopped by request')\n"})
	_, _, err := a.StartTask(cfg)
	must.NoError(t, err)
	testsupport.Eventually(t, "it runs", func() bool { return a.output(cfg, "stdout") != "" })
	must.NoError(t, a.StopTask(cfg.ID, patience, "SIGINT"))
	r := a.wait(cfg)
	must.Eq(t, 1, r.ExitCode, must.Sprintf("got %+v, stderr", r))
	test.Eq(t, "stopped by request\n", a.output(cfg, "stderr"), test.Sprintf("got %+v, stderr", r))
	if r.Err != nil && strings.Contains(r.Err.Error(), "Python:") {
		t.Error(r.Err)
	}
	must.NoError(t, a.DestroyTask(cfg.ID, true))
}

func TestReportExit_CanBeTurnedOff(t *testing.T) {
	a := start(t, func(c *Config) { c.ExceptionEvents = false })
	cfg := a.task(`code = "raise RuntimeError('secret')"`, nil)
	a.run(cfg)
	a.hasSaid()
	for _, e := range a.said(cfg) {
		test.StrNotContains(t, e, "secret")
	}
}

func TestReportExit_FollowsNoLinks(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t)
	secret := filepath.Join(a.dir, "secret")
	must.NoError(t, os.WriteFile(secret, []byte("Traceback (most recent call last):\n  File \"x.py\", line 1, in "+
		"<module>\nPassword: hunter2\n"), 0o600))
	// the task plants a link to the secret under the name of a newer log file, which the driver must not follow
	cfg := a.task("script = \"app.py\"\nargs = [\""+secret+"\"]",
		map[string]string{"app.py": "import os, sys\nlogs = os.path.join(os.environ['LOGS'])\n" +
			"os.symlink(sys.argv[1], os.path.join(logs, 'app.stderr.7'))\nsys.exit(1)\n"})
	cfg.Env["LOGS"] = filepath.Join(cfg.AllocDir, "alloc/logs")
	must.NoError(t, os.Chmod(cfg.Env["LOGS"], 0o777))
	_, r := a.run(cfg)
	_, err := os.Lstat(filepath.Join(cfg.Env["LOGS"], "app.stderr.7"))
	must.NoError(t, err, must.Sprintf("the link is missing: %v, %+v", err, r))
	must.Eq(t, 1, r.ExitCode, must.Sprintf("the link is missing: %v, %+v", err, r))
	a.hasSaid()
	for _, e := range a.said(cfg) {
		test.StrNotContains(t, e, "hunter2")
	}
}

func TestReportExit_IgnoresEarlierRuns(t *testing.T) {
	a := start(t)
	for _, recovered := range []bool{false, true} {
		first := a.task(`script = "app.py"`, map[string]string{"app.py": "raise ValueError('first')\n"})
		a.run(first)
		a.says(first, "ValueError: first")

		second := *first
		second.ID += "-2" // a restart: another task ID, but the same allocation and log files
		gate := filepath.Join(a.dir, "gate-"+first.AllocID)
		must.NoError(t, os.WriteFile(filepath.Join(first.TaskDir().LocalDir, "app.py"), []byte("import os, sys, time\n"+
			"while not os.path.exists('"+gate+"'): time.sleep(0.01)\nsys.exit('no settings')\n"), 0o644))
		handle, _, err := a.StartTask(&second)
		must.NoError(t, err)
		if recovered { // the task may end while no plugin runs
			a.stopDriver()
		}
		must.NoError(t, os.WriteFile(gate, nil, 0o644))
		if recovered {
			a.startDriver()
			must.NoError(t, a.RecoverTask(handle))
		}
		r := a.wait(&second)
		test.Eq(t, 1, r.ExitCode, test.Sprintf("got %+v", r))
		must.NoError(t, a.DestroyTask(second.ID, true))
		text := a.output(first, "stderr")
		must.StrContains(t, text, "first", must.Sprint("stderr of both"))
		test.StrHasSuffix(t, "no settings\n", text, test.Sprint("stderr of both"))
		a.hasSaid()
		for _, e := range a.said(&second) {
			if strings.HasPrefix(e, "Python:") && !strings.HasSuffix(e, "no settings") {
				t.Errorf("recovered %t: %q", recovered, e)
			}
		}
	}
}
