// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package traceback

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// stderrOf writes these files, and runs app.py (or Python with args). It returns stderr and the exit code.
func stderrOf(t *testing.T, files map[string]string, args ...string) ([]byte, int) {
	t.Helper()
	testsupport.NeedPython(t)
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	if args == nil {
		args = []string{filepath.Join(dir, "app.py")}
	}
	cmd := exec.Command(testsupport.Python, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	_ = cmd.Run() // the program fails on purpose
	return stderr.Bytes(), cmd.ProcessState.ExitCode()
}

func TestLast_FindsTheException(t *testing.T) {
	for name, test := range map[string]struct{ program, want string }{
		"plain": {"x = 1\nraise ValueError('no')", "ValueError: no (app.py:2)"},
		"class within a function": {"def f():\n    class E(Exception): pass\n    raise E('x')\nf()",
			"__main__.f.<locals>.E: x (app.py:3)"},
		"during handling":    {"try:\n    1/0\nexcept Exception:\n    {}['x']", "KeyError: 'x' (app.py:4)"},
		"syntax":             {"x = 1\ny = (", "SyntaxError: '(' was never closed (app.py:2)"},
		"syntax of a module": {"import bad", "SyntaxError: '(' was never closed (bad.py:2)"},
		"notes":              {"e = ValueError('x')\ne.add_note('one: two')\nraise e", "ValueError: x (app.py:3)"},
		"group": {"e = ValueError('a\\nb: c')\nraise ExceptionGroup('several', [e, TypeError('t')])",
			"ExceptionGroup: several (2 sub-exceptions); the first is ValueError: a (app.py:2)"},
		"group of groups": {"def g():\n    try:\n        1/0\n    except Exception as e:\n        return " +
			"e\nraise ExceptionGroup('a', [ExceptionGroup('b', [g()]), g()])",
			"ExceptionGroup: a (2 sub-exceptions); the first is ZeroDivisionError: division by zero (app.py:3)"},
		"group of tasks": {"import asyncio\nasync def f():\n    try:\n        {}['x']\n    except " +
			"KeyError:\n        raise OSError('late')\nasync def main():\n    async with asyncio.TaskGroup() as g:\n        " +
			"g.create_task(f())\nasyncio.run(main())", "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception); " +
			"the first is OSError: late (app.py:6)"},
		"sys.exit": {"import sys\nsys.exit('failed: for a reason')",
			"exit code 1, last line on stderr: failed: for a reason"},
		"sys.exit, after records": {"import logging, sys\ntry:\n    1/0\nexcept Exception:\n    " +
			"logging.exception('failed')\nfor i in range(20): logging.error('again')\nsys.exit('no settings')",
			"exit code 1, last line on stderr: no settings"},
		"in the standard library": {"import json\njson.loads('{')",
			"json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) " +
				"(app.py:2)"},
		"main and then a thread": {"import threading\ne = threading.Event()\ndef f():\n    e.wait()\n    raise " +
			"ValueError('thread')\nthreading.Thread(target=f).start()\nimport sys\nsys.excepthook = lambda *a: " +
			"(sys.__excepthook__(*a), e.set())\n1/0", "ZeroDivisionError: division by zero (app.py:9)"},
		"logged, and nothing after": {"import logging, sys\ntry:\n    1/0\nexcept Exception:\n    " +
			"logging.exception('failed')\nsys.exit(1)", "ZeroDivisionError: division by zero (app.py:3)"},
		"invalid UTF-8": {"import " +
			"sys\nsys.stderr.buffer.write(b'\\xff\\xfe\\n')\nsys.stderr.reconfigure(encoding='latin-1')\nraise " +
			"ValueError('\\xfc \\x1b[31mred\\x1b[0m \\x07')", "ValueError: ? red (app.py:4)"},
		"traceback in the message": {"raise ValueError('worker failed:\\nTraceback (most recent call last):\\n  File " +
			"\"w.py\", line 3, in f\\nKeyError: 1')", "ValueError: worker failed (app.py:1)"},
		"run as a module": {"import subprocess, sys\nif len(sys.argv) == 1:\n    " +
			"sys.exit(subprocess.call([sys.executable, '-m', 'app', 'x']))\nraise ValueError('a\\nline' * 30)",
			"ValueError: a (app.py:4)"},
		"main, and then a task": {"import asyncio\nasync def f(): raise ValueError('of a task')\nasync def " +
			"main():\n    global t\n    t = asyncio.create_task(f())\n    await asyncio.sleep(0)\n    raise " +
			"KeyError('main')\nasyncio.run(main())", "KeyError: 'main' (app.py:7)"},
		"logged, and then raised": {"import logging, sys\ndef main():\n    try:\n        1/0\n    except " +
			"Exception:\n        logging.exception('failed')\n        raise\nmain()",
			"ZeroDivisionError: division by zero (app.py:4)"},
		"records in between": {"import sys, traceback\ndef hook(*e):\n    first, *rest = " +
			"traceback.format_exception(*e)\n    sys.stderr.write(first + rest[0] + 'INFO: beat\\n2024-01-01 00:00:00,1 " +
			"INFO beat\\n' + ''.join(rest[1:]))\nsys.excepthook = hook\n1/0", "ZeroDivisionError: division by zero (app.py:6)"},
	} {
		t.Run(name, func(t *testing.T) {
			stderr, code := stderrOf(t, map[string]string{"app.py": test.program + "\n", "bad.py": "\nx = ("})
			if bytes.Contains(stderr, []byte("name 'ExceptionGroup' is not defined")) || bytes.Contains(stderr,
				[]byte("no attribute 'add_note'")) {
				t.Skip("this interpreter is older than 3.11")
			}
			f, ok := Last(stderr, code, dirOf(stderr))
			want := test.want
			if strings.Contains(string(stderr), "\nf.<locals>") {
				want = strings.TrimPrefix(want, "__main__.") // this interpreter omits the main module's name
			}
			if !ok || f.String() != want {
				t.Errorf("got %q, %t of\n%s", f, ok, stderr)
			}
		})
	}
}

func dirOf(stderr []byte) string {
	m := regexp.MustCompile(`"(/[^"]*)/app\.py"`).FindSubmatch(stderr)
	if m == nil {
		return "/nonexistent"
	}
	return string(m[1])
}

func TestLast_IgnoresExceptionsThatDidNotEndTheProgram(t *testing.T) {
	for name, program := range map[string]string{
		"nothing":           "",
		"record of logging": "import logging, sys\nlogging.error('failed')\nsys.exit(1)",
		"thread": "import threading\ndef f():\n    try:\n        1/0\n    except Exception:\n        " +
			"raise ValueError('x')\nt = threading.Thread(target=f)\nt.start()\nt.join()\nraise SystemExit(1)",
		"in a destructor": "class C:\n    def __del__(self): 1/0\nC()\nraise SystemExit(1)",
		"printed, and logged on": "import logging, sys, traceback\nlogging.basicConfig(level=logging.INFO)\ntry:\n    " +
			"1/0\nexcept Exception:\n    traceback.print_exc()\nfor i in range(30): logging.info('line %d', i)\nsys.exit(1)",
		"task": "import asyncio, gc, sys\nasync def f(): raise ValueError('of a task')\nasync def " +
			"main():\n    t = asyncio.create_task(f())\n    await asyncio.sleep(0)\n    del t\n    gc.collect()\n    " +
			"sys.exit(1)\nasyncio.run(main())",
		"callback": "import asyncio, sys\nasync def main():\n    " +
			"asyncio.get_running_loop().call_soon(lambda: 1/0)\n    await asyncio.sleep(0)\n    " +
			"sys.exit(1)\nasyncio.run(main())",
		"callback of a future": "import sys\nfrom concurrent.futures import Future\nf = " +
			"Future()\nf.add_done_callback(lambda f: 1/0)\nf.set_result(1)\nsys.exit(1)",
		"request of a server": "import socketserver, sys\ntry:\n    1/0\nexcept Exception:\n    " +
			"socketserver.BaseServer(None, None).handle_error(None, 'a client')\nsys.exit(1)",
		"dumped": "import faulthandler, sys\nfaulthandler.dump_traceback()\nsys.exit(1)",
	} {
		stderr, code := stderrOf(t, map[string]string{"app.py": program})
		f, ok := Last(stderr, code)
		test.False(t, ok, test.Sprintf("%s: got %q of\n%s", name, f, stderr))
	}
}

func TestLast_NamesFileAndLine(t *testing.T) {
	const env = "/var/cache/outrider/python/envs/4f1c09aa.0/lib/python3.11/site-packages/"
	const task = "/var/lib/nomad/alloc/4f1c/web"
	for name, test := range map[string]struct {
		files []string // of the frames, outermost first
		want  string
	}{
		"a package of the environment": {[]string{"<frozen runpy>", env + "gunicorn/util.py", "<frozen os>"}, "util.py"},
		"the task's file":              {[]string{task + "/local/app.py", env + "six.py"}, "app.py"},
		"the task's package":           {[]string{task + "/local/shop/cart/util.py"}, "shop/cart/util.py"},
		"beside local":                 {[]string{task + "/release/app.py"}, "release/app.py"},
		"elsewhere":                    {[]string{"/srv/shop/util.py"}, "util.py"},
		"another task's file":          {[]string{task + "2/local/app.py"}, "app.py"},
		"above":                        {[]string{"../../util.py"}, "util.py"},
	} {
		stderr := "Traceback (most recent call last):\n"
		for _, file := range test.files {
			stderr += "  File \"" + file + "\", line 25, in f\n"
		}
		f, ok := Last([]byte(stderr+"ValueError: x\n"), 1, task+"/local", task)
		if !ok || f.File != test.want || f.Line != 25 {
			t.Errorf("%s: %s:%d, %t, want %s", name, f.File, f.Line, ok, test.want)
		}
	}
}
