// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package traceback

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// What is in testdata was written by the Debian packages python3-rich 13.3.1, python3-click 8.1.3 and
// python3-typer 0.7.0 in /srv; the number is the exit code.
func TestLast_ReadsRichAndClick(t *testing.T) {
	const long = "ValueError: a message that is much longer than the eighty characters of a line and thus is wrapped " +
		"by rich at the end of it, as words"
	for name, want := range map[string]string{
		"rich-1":       long + " (app.py:4)",
		"rich-ascii-1": long + " (app.py:4)",
		"rich-folded-1": long + " (a/long/directory/name/that/does/not/fit/in/a/line/of/eighty/characters/" +
			"at/all/program.py:4)",
		"rich-locals-1":     "KeyError: 'b' (rl.py:10)",
		"rich-syntax-1":     "SyntaxError: '(' was never closed (bad.py:1)",
		"rich-printed-1":    "ZeroDivisionError: division by zero (rprint.py:4)",
		"rich-logged-1":     "ZeroDivisionError: division by zero (rlog.py:5)",
		"typer-exception-1": "ZeroDivisionError: division by zero (t.py:3)",
		"typer-2":           "Error: Missing argument 'N'.",
		"click-choice-2":    "Error: Missing option '--color'. Choose from: red, blue",
		"click-command-2":   "Error: No such command 'b'.",
		"click-exception-1": "exit code 1, last line on stderr: and a second line",
		"click-abort-1":     "",
	} {
		stderr, err := os.ReadFile("testdata/" + name + ".txt")
		must.NoError(t, err)
		f, ok := Last(stderr, int(name[len(name)-1]-'0'), "/srv")
		must.Eq(t, (want != ""), ok, must.Sprintf("%s: got %q, %t of\n%s", name, f, ok, stderr))
		test.Eq(t, want, f.String(), test.Sprintf("%s: got %q, %t of\n%s", name, f, ok, stderr))
	}
}

func TestLast_ReadsInstalledRichAndClick(t *testing.T) {
	if out, err := exec.Command(testsupport.Python, "-c", "import click, rich").CombinedOutput(); err != nil {
		t.Skipf("there is no rich or no click: %v: %s", err, out)
	}
	const install = "from rich.traceback import install\ninstall()\n"
	for name, test := range map[string]struct{ program, want string }{
		"rich": {install + "def f():\n    {}['x']\nf()\n", "KeyError: 'x' (app.py:4)"},
		"chained": {install + "try:\n    1/0\nexcept Exception as e:\n    raise OSError('a: b') from e\n",
			"OSError: a: b (app.py:6)"},
		"wrapped": {install + "raise ValueError('word ' * 50)\n",
			"ValueError: " + strings.TrimSuffix(strings.Repeat("word ", 50), " ") + " (app.py:3)"},
		"went on": {install + "import sys\nfrom rich.console import Console\ndef main():\n    try:\n        1/0\n    " +
			"except Exception:\n        Console(stderr=True).print_exception()\nmain()\nfor i in range(30): print('line', " +
			"i, file=sys.stderr)\nsys.exit(1)\n", ""},
		"click": {"import click\nraise SystemExit(click.Command('x', params=[click.Argument(['n'], " +
			"type=int)]).main(['y']))\n", "Error: Invalid value for 'N': 'y' is not a valid integer."},
		"click fails": {"import click\ndef f(): raise click.ClickException('no such stick')\nclick.Command('x', " +
			"callback=f).main([])\n", "Error: no such stick"},
	} {
		stderr, code := stderrOf(t, map[string]string{"app.py": test.program})
		f, ok := Last(stderr, code)
		if ok != (test.want != "") || f.String() != test.want {
			t.Errorf("%s: got %q, %t of\n%s", name, f, ok, stderr)
		}
	}
}
