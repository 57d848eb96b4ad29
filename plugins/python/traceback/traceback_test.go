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
	"unicode/utf8"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// stderrOf runs a program of these files, app.py first, and returns what it wrote and its exit code.
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
	const fails = "def f():\n    raise ValueError('inner')\n"
	for name, test := range map[string]struct{ program, want string }{
		"plain": {"x = 1\nraise ValueError('no')", "ValueError: no (app.py:2)"},
		"no such module": {"import nonexistent",
			"ModuleNotFoundError: No module named 'nonexistent' (app.py:1)"},
		"without a message":        {"assert 1 == 2", "AssertionError (app.py:1)"},
		"message of several lines": {"raise ValueError('first\\nsecond\\nthird')", "ValueError: first (app.py:1)"},
		"class within a function": {"def f():\n    class E(Exception): pass\n    raise E('x')\nf()",
			"__main__.f.<locals>.E: x (app.py:3)"},
		"during handling": {"try:\n    1/0\nexcept Exception:\n    {}['x']", "KeyError: 'x' (app.py:4)"},
		"direct cause": {"try:\n    1/0\nexcept Exception as e:\n    raise OSError('x') from e",
			"OSError: x (app.py:4)"},
		"syntax": {"x = 1\ny = (", "SyntaxError: '(' was never closed (app.py:2)"},
		"indentation": {"if True:\nx = 1",
			"IndentationError: expected an indented block after 'if' statement on line 1 (app.py:2)"},
		"syntax of a module": {"import bad", "SyntaxError: '(' was never closed (bad.py:2)"},
		"recursion": {"def f():\n    return f()\nf()",
			"RecursionError: maximum recursion depth exceeded (app.py:2)"},
		"interrupt": {"raise KeyboardInterrupt", "KeyboardInterrupt (app.py:1)"},
		"notes":     {"e = ValueError('x')\ne.add_note('one: two')\nraise e", "ValueError: x (app.py:3)"},
		"group": {"e = ValueError('a\\nb: c')\nraise ExceptionGroup('several', [e, TypeError('t')])",
			"ExceptionGroup: several (2 sub-exceptions); the first is ValueError: a (app.py:2)"},
		"group of groups": {"def g():\n    try:\n        1/0\n    except Exception as e:\n        return " +
			"e\nraise ExceptionGroup('a', [ExceptionGroup('b', [g()]), g()])",
			"ExceptionGroup: a (2 sub-exceptions); the first is ZeroDivisionError: division by zero (app.py:3)"},
		"group of tasks": {"import asyncio\nasync def f():\n    try:\n        {}['x']\n    except " +
			"KeyError:\n        raise OSError('late')\nasync def main():\n    async with asyncio.TaskGroup() as g:\n        " +
			"g.create_task(f())\nasyncio.run(main())", "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception); " +
			"the first is OSError: late (app.py:6)"},
		"group with a long message": {"raise ExceptionGroup('m' * 1000, [ValueError('x')])",
			"ExceptionGroup: " + strings.Repeat("m", 134) + "…; the first is ValueError: x (app.py:1)"},
		"group, and one while it is": {"try:\n    raise ExceptionGroup('g', [KeyError(1)])\nexcept Exception:\n    " +
			"raise OSError('x')", "OSError: x (app.py:4)"},
		"message of 200 kB in lines": {"raise ValueError('5 errors\\n' + 'x y\\n' * 10 + ('z' * 60 + '\\n') * 3_000)",
			"ValueError: 5 errors (app.py:1)"},
		"sys.exit": {"import sys\nsys.exit('failed: for a reason')",
			"exit code 1, last line on stderr: failed: for a reason"},
		"sys.exit, after records": {"import logging, sys\ntry:\n    1/0\nexcept Exception:\n    " +
			"logging.exception('failed')\nfor i in range(20): logging.error('again')\nsys.exit('no settings')",
			"exit code 1, last line on stderr: no settings"},
		"without a traceback": {"import sys\nsys.tracebacklimit = 0\nraise ValueError('x')",
			"exit code 1, last line on stderr: ValueError: x"},
		"in the standard library": {"import json\njson.loads('{')",
			"json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) " +
				"(app.py:2)"},
		"in a package": {"import pkg.mod\npkg.mod.f()", "ValueError: inner (pkg/mod.py:2)"},
		"in an installed package": {"import sys; sys.path.append('site-packages')\nimport installed\ninstalled.f()",
			"ValueError: inner (app.py:3)"},
		"atexit": {"import atexit, sys\natexit.register(lambda: print('closing: all\\nbye', " +
			"file=sys.stderr))\n1/0", "ZeroDivisionError: division by zero (app.py:3)"},
		"main and then a thread": {"import threading\ne = threading.Event()\ndef f():\n    e.wait()\n    raise " +
			"ValueError('thread')\nthreading.Thread(target=f).start()\nimport sys\nsys.excepthook = lambda *a: " +
			"(sys.__excepthook__(*a), e.set())\n1/0", "ZeroDivisionError: division by zero (app.py:9)"},
		"logged, and nothing after": {"import logging, sys\ntry:\n    1/0\nexcept Exception:\n    " +
			"logging.exception('failed')\nsys.exit(1)", "ZeroDivisionError: division by zero (app.py:3)"},
		"str fails": {"class E(Exception):\n    def __str__(self): raise ValueError\nraise E",
			"__main__.E: <exception str() failed> (app.py:3)"},
		"invalid UTF-8": {"import " +
			"sys\nsys.stderr.buffer.write(b'\\xff\\xfe\\n')\nsys.stderr.reconfigure(encoding='latin-1')\nraise " +
			"ValueError('\\xfc \\x1b[31mred\\x1b[0m \\x07')", "ValueError: ? red (app.py:4)"},
		"CRLF": {"import sys\nsys.stderr.reconfigure(newline='\\r\\n')\nraise ValueError('x')",
			"ValueError: x (app.py:3)"},
		"message of a hundred lines": {"import " +
			"logging\nlogging.basicConfig(level=logging.INFO)\nlogging.info('begins')\nraise ValueError('\\n'.join('line " +
			"%d' % n for n in range(100)))", "ValueError: line 0 (app.py:4)"},
		"long message, logged": {"import logging, sys\ntry:\n    raise ValueError('first' + '\\n  indented' * " +
			"30)\nexcept Exception:\n    logging.exception('failed')\nsys.exit(3)", "ValueError: first (app.py:3)"},
		"many notes": {"e = ValueError('x')\nfor n in range(15):\n    e.add_note('note %d' % n)\nraise e",
			"ValueError: x (app.py:4)"},
		"traceback in the message": {"raise ValueError('worker failed:\\nTraceback (most recent call last):\\n  File " +
			"\"w.py\", line 3, in f\\nKeyError: 1')", "ValueError: worker failed (app.py:1)"},
		"as a module that is run": {"import subprocess, sys\nif len(sys.argv) == 1:\n    " +
			"sys.exit(subprocess.call([sys.executable, '-m', 'app', 'x']))\nraise ValueError('a\\nline' * 30)",
			"ValueError: a (app.py:4)"},
		"and a task's, at the end": {"import asyncio\nasync def f(): raise ValueError('of a task')\nasync def " +
			"main():\n    global t\n    t = asyncio.create_task(f())\n    await asyncio.sleep(0)\n    raise " +
			"KeyError('main')\nasyncio.run(main())", "KeyError: 'main' (app.py:7)"},
		"and another, at exit": {"import atexit, traceback\n@atexit.register\ndef f():\n    try:\n        " +
			"{}['exit']\n    except KeyError:\n        traceback.print_exc()\n1/0",
			"ZeroDivisionError: division by zero (app.py:8)"},
		"logged, and then raised": {"import logging, sys\ndef main():\n    try:\n        1/0\n    except " +
			"Exception:\n        logging.exception('failed')\n        raise\nmain()",
			"ZeroDivisionError: division by zero (app.py:4)"},
		"records in between": {"import sys, traceback\ndef hook(*e):\n    first, *rest = " +
			"traceback.format_exception(*e)\n    sys.stderr.write(first + rest[0] + 'INFO: beat\\n2024-01-01 00:00:00,1 " +
			"INFO beat\\n' + ''.join(rest[1:]))\nsys.excepthook = hook\n1/0", "ZeroDivisionError: division by zero (app.py:6)"},
		"a level in the message": {"raise OSError('refused: FATAL: password is wrong')",
			"OSError: refused: FATAL: password is wrong (app.py:1)"},
		"source is not shown": {"connect = lambda **k: 1/0\nconnect(password='hunter2')",
			"ZeroDivisionError: division by zero (app.py:1)"},
	} {
		t.Run(name, func(t *testing.T) {
			stderr, code := stderrOf(t, map[string]string{"app.py": test.program + "\n", "bad.py": "\nx = (",
				"pkg/__init__.py": fails, "pkg/mod.py": fails, "site-packages/installed.py": fails})
			if bytes.Contains(stderr, []byte("name 'ExceptionGroup' is not defined")) || bytes.Contains(stderr,
				[]byte("no attribute 'add_note'")) {
				t.Skip("this interpreter is older than 3.11")
			}
			f, ok := Last(stderr, code, dirOf(stderr))
			want := test.want
			if name == "str fails" && strings.Contains(string(stderr), "\nE: ") || strings.Contains(string(stderr),
				"\nf.<locals>") {
				want = strings.TrimPrefix(want, "__main__.") // as interpreters print the main module's classes
			}
			if !ok || f.String() != want {
				t.Errorf("got %q, %t of\n%s", f, ok, stderr)
			}
		})
	}
}

// dirOf is the directory of app.py in a traceback.
func dirOf(stderr []byte) string {
	m := regexp.MustCompile(`"(/[^"]*)/app\.py"`).FindSubmatch(stderr)
	if m == nil {
		return "/nonexistent"
	}
	return string(m[1])
}

func TestLast_IgnoresExceptionsThatEndedNothing(t *testing.T) {
	for name, program := range map[string]string{
		"nothing":           "",
		"exit code 3":       "import sys\nprint('failed: for a reason', file=sys.stderr)\nsys.exit(3)",
		"record of logging": "import logging, sys\nlogging.error('failed')\nsys.exit(1)",
		"indented":          "import sys\nsys.exit('usage:\\n  app FILE')",
		"thread": "import threading\ndef f():\n    try:\n        1/0\n    except Exception:\n        " +
			"raise ValueError('x')\nt = threading.Thread(target=f)\nt.start()\nt.join()\nraise SystemExit(1)",
		"group in a thread": "import sys, threading\ndef f(): raise ExceptionGroup('several', [ValueError(1)])\nt = " +
			"threading.Thread(target=f)\nt.start()\nt.join()\nsys.exit(1)",
		"in a destructor": "class C:\n    def __del__(self): 1/0\nC()\nraise SystemExit(1)",
		"printed, and logged on": "import logging, sys, traceback\nlogging.basicConfig(level=logging.INFO)\ntry:\n    " +
			"1/0\nexcept Exception:\n    traceback.print_exc()\nfor i in range(30): logging.info('line %d', i)\nsys.exit(1)",
		"another exit code": "import sys, traceback\ntry:\n    1/0\nexcept Exception:\n    " +
			"traceback.print_exc()\nfor i in range(30): print('line', i, file=sys.stderr)\nsys.exit(3)",
		"task": "import asyncio, gc, sys\nasync def f(): raise ValueError('of a task')\nasync def " +
			"main():\n    t = asyncio.create_task(f())\n    await asyncio.sleep(0)\n    del t\n    gc.collect()\n    " +
			"sys.exit(1)\nasyncio.run(main())",
		"task, debugged": "import asyncio, gc, sys\nasync def f(): raise ValueError('of a task')\nasync def " +
			"main():\n    t = asyncio.create_task(f())\n    await asyncio.sleep(0)\n    del t\n    gc.collect()\n    " +
			"sys.exit(1)\nasyncio.run(main(), debug=True)",
		"callback": "import asyncio, sys\nasync def main():\n    " +
			"asyncio.get_running_loop().call_soon(lambda: 1/0)\n    await asyncio.sleep(0)\n    " +
			"sys.exit(1)\nasyncio.run(main())",
		"callback of a future": "import sys\nfrom concurrent.futures import Future\nf = " +
			"Future()\nf.add_done_callback(lambda f: 1/0)\nf.set_result(1)\nsys.exit(1)",
		"request of a server": "import socketserver, sys\ntry:\n    1/0\nexcept Exception:\n    " +
			"socketserver.BaseServer(None, None).handle_error(None, 'a client')\nsys.exit(1)",
		"stack": "import traceback, sys\ndef f(): traceback.print_stack()\nprint('first', " +
			"file=sys.stderr)\nf()\nprint('WARNING: low', file=sys.stderr)",
		"dumped": "import faulthandler, sys\nfaulthandler.dump_traceback()\nsys.exit(1)",
		"words": "import sys\nprint('Traceback (most recent call last):\\nnothing of the kind', " +
			"file=sys.stderr)",
	} {
		stderr, code := stderrOf(t, map[string]string{"app.py": program})
		f, ok := Last(stderr, code)
		test.False(t, ok, test.Sprintf("%s: got %q of\n%s", name, f, stderr))
	}
}

func TestLast_TakesCodeWithoutAFile(t *testing.T) {
	for want, args := range map[string][]string{
		"ZeroDivisionError: division by zero (<string>:2)": {"-c", "\n1/0"},
		"json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0) (<string>:1)": {"-c",
			"import json; json.loads('x')"},
	} {
		stderr, code := stderrOf(t, nil, args...)
		f, ok := Last(stderr, code)
		must.True(t, ok, must.Sprintf("%q: got %q, %t of\n%s", args, f, ok, stderr))
		test.Eq(t, want, f.String(), test.Sprintf("%q: got %q, %t of\n%s", args, f, ok, stderr))
	}
}

func TestLast_RemovesColours(t *testing.T) { // as Python 3.13 writes them with FORCE_COLOR
	const coloured = "Traceback (most recent call last):\r\n  File \x1b[35m\"/srv/app.py\"\x1b[0m, line " +
		"\x1b[35m1\x1b[0m, in \x1b[35m<module>\x1b[0m\r\n    \x1b[31m1\x1b[0m\x1b[1;31m/\x1b[0m\x1b[31m0\x1b[0m\r\n    " +
		"\x1b[31m~\x1b[0m\x1b[1;31m^\x1b[0m\x1b[31m~\x1b[0m\r\n\x1b[1;35mZeroDivisionError\x1b[0m: \x1b[35mdivision by " +
		"zero\x1b[0m\r\n"
	f, ok := Last([]byte(coloured), 1)
	must.True(t, ok, must.Sprintf("%q, %t", f, ok))
	test.Eq(t, "ZeroDivisionError: division by zero (app.py:1)", f.String(), test.Sprintf("%q, %t", f, ok))
}

func FuzzLast(f *testing.F) {
	f.Add([]byte("Traceback (most recent call last):\n  File \"a\", line 1, in f\n  [Previous line repeated]\nE: " +
		"x\n\nDuring handling of the above exception, another exception occurred:\n\n  + Exception Group Traceback (most " +
		"recent call last):\n  |   File \"b\", line 2\n  | G: y\n  +-+\n"))
	f.Add([]byte("Exception in thread T:\nTraceback (most recent call last):\nE\n  File \"a\", line " +
		"99999999999999999999\nSyntaxError:\n"))
	f.Add([]byte("Fatal Python error: x\nCurrent thread 0x0 (most recent call first):\n  File \"<string>\", line 1 in " +
		"f\n\xff\x1b["))
	f.Fuzz(func(t *testing.T, tail []byte) {
		got, ok := Last(tail, 1)
		s := got.String()
		must.True(t, utf8.ValidString(s), must.Sprint(s))
		must.False(t, utf8.RuneCountInString(s) > 2*maxText+30, must.Sprint(s))
		test.False(t, strings.ContainsAny(s, "\n\r\x00\x1b"), test.Sprint(s))
		if ok && got.Text == "" {
			t.Error("it has no text")
		}
	})
}
