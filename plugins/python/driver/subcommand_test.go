// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/scheduler/feasible"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// files puts files into the working directory of the test.
func files(t *testing.T, all map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, content := range all {
		must.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must.NoError(t, os.WriteFile(name, []byte(content), 0o644))
	}
}

func block(operator, value string) string {
	return "constraint {\n  attribute = \"${attr.driver.python.versions}\"\n  operator  " +
		"= \"" + operator + "\"\n  value     = \"" + value + "\"\n}\n"
}

const none = "# no constraint is needed: each interpreter of a node with the python driver fits\n"

func TestConstraint_PrintsABlockForEachKindOfFile(t *testing.T) {
	files(t, map[string]string{
		"app.py":                "# /// script\n# requires-python = \">=3.11,<3.13\"\n# dependencies = []\n# ///\n",
		"plain.py":              "print(1)\n",
		"old.py":                "# /// script\n# requires-python = \">=3.6\"\n# ///\n",
		"exact.py":              "# /// script\n# requires-python = \"==3.11.2\"\n# ///\n",
		"pyproject.toml":        "requires-python = \"wrong\"\n[project]\nname = \"x\"\nrequires-python = \">=3.12.4\"\n",
		"bare/pyproject.toml":   "[tool.x]\ny = 1\n",
		"pylock.toml":           "lock-version = \"1.0\"\nrequires-python = \"~=3.11.4\"\n",
		"uv.lock":               "version = 1\nrequires-python = \"==3.12.*\"\n[[package]]\nname = \"x\"\n",
		"app.py.lock":           "# by uv\nversion = 1\nrequires-python = \">=3.10, <3.11\"\n",
		"injecting/pylock.toml": "requires-python = \"\"\" \\n >=3.10,\\n<3.11\"\"\"\n",
	})
	const open = "# newer versions would fit too: add them when nodes have them\n"
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"app.py"}, "# from app.py: requires-python = \">=3.11,<3.13\"\n" + block("set_contains_any", "3.11,3.12")},
		{[]string{"plain.py"}, "# from plain.py, which has no requires-python\n" + none},
		{[]string{"bare/pyproject.toml"}, "# from bare/pyproject.toml, which has no requires-python\n" + none},
		{[]string{"old.py"}, "# from old.py: requires-python = \">=3.6\"\n" + none},
		{[]string{"exact.py"}, "# from exact.py: requires-python = \"==3.11.2\"\n" + block("set_contains", "3.11.2")},
		{[]string{"pyproject.toml"}, "# from pyproject.toml: requires-python = \">=3.12.4\"\n# not every release of 3.12 " +
			"fits: the driver checks that when the task starts\n" + open + block("set_contains_any",
			"3.12,3.13,3.14,3.15,3.16")},
		{[]string{"pylock.toml"}, "# from pylock.toml: requires-python = \"~=3.11.4\"\n# not every release of 3.11 fits: " +
			"the driver checks that when the task starts\n" + block("set_contains_any", "3.11")},
		{[]string{"uv.lock"}, "# from uv.lock: requires-python = \"==3.12.*\"\n" + block("set_contains_any", "3.12")},
		{[]string{"app.py.lock"}, "# from app.py.lock: requires-python = \">=3.10, <3.11\"\n" + block("set_contains_any",
			"3.10")},
		{[]string{"injecting/pylock.toml"}, "# from injecting/pylock.toml: requires-python = \" \\n " +
			">=3.10,\\n<3.11\"\n" + block("set_contains_any", "3.10")},
		{[]string{">=3.13"}, "# from >=3.13\n" + open + block("set_contains_any", "3.13,3.14,3.15,3.16")},
		{[]string{"3.12"}, "# from 3.12\n" + block("set_contains_any", "3.12")},
		{[]string{"app.py", ">=3.12"}, "# from app.py: requires-python = \">=3.11,<3.13\"\n# from " +
			">=3.12\n" + block("set_contains_any", "3.12")},
	} {
		var b strings.Builder
		if err := constraint(&b, test.args); err != nil || b.String() != test.want {
			t.Errorf("%q: %v, got\n%s\nwant\n%s", test.args, err, b.String(), test.want)
		}
	}
}

func TestConstraint_IsNoneForARequirementsFile(t *testing.T) {
	const want = "# from requirements.lock, which has no requires-python\n" + none
	for _, content := range []string{
		"moon-phase==1.2 \\\n    --hash=sha256:" + strings.Repeat("0", 64) + "\n",
		"# by uv\r\n\r\n-i https://host/simple\r\nmoon-phase==1.2", "\uFEFFmoon.phase [tide] >= 1 ; python_version > '3'",
		"moon-phase", "moon-phase # all of it\n", "moon-phase @ https://host/x.whl", "moon-phase \\\n==1",
		"tide[moon,sun]==1",
	} {
		files(t, map[string]string{"requirements.lock": content})
		var b strings.Builder
		err := constraint(&b, []string{"requirements.lock"})
		must.NoError(t, err, must.Sprintf("%q: %v", content, err))
		test.Eq(t, want, b.String(), test.Sprintf("%q: %v", content, err))
	}
}

func TestConstraint_RefusesInOneSentence(t *testing.T) {
	files(t, map[string]string{
		"twice.py":           "# /// script\n# ///\n# /// script\n# a = 1\n# ///\n\n# /// script\n# a = 1\n# ///\n",
		"caret.py":           "# /// script\n# requires-python = \"^3.11\"\n# ///\n",
		"two.py":             "# /// script\n# requires-python = \"<3\"\n# ///\n",
		"bad/pyproject.toml": "[project]\nrequires-python = >=3.11\n",
		"odd/uv.lock":        "requires-python = 3\n",
		"never.toml":         "requires-python = \">=3.12,<3.11\"\n",
	})
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "usage: constraint FILE|VERSIONS"},
		{[]string{"-x"}, "usage: constraint FILE|VERSIONS"},
		{[]string{""}, "usage: constraint FILE|VERSIONS"},
		{[]string{"gone.py"}, `there is no file gone.py, and "gone.py" is not a version specifier`},
		{[]string{"dir/gone.py"}, "stat dir/gone.py: no such file"},
		{[]string{"bad"}, "bad is not a regular file"},
		{[]string{"caret.py"}, `caret.py: requires-python: "^3.11" is not a version specifier`},
		{[]string{"twice.py"}, "twice.py: line "},
		{[]string{"two.py"}, `"<3" allows no Python from 3.8 on`},
		{[]string{"bad/pyproject.toml"}, "bad/pyproject.toml:2: "},
		{[]string{"odd/uv.lock"}, "odd/uv.lock:1: this is not TOML, or not such a file: requires-python: "},
		{[]string{"never.toml"}, "allows no Python"},
	} {
		var b strings.Builder
		err := constraint(&b, test.args)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") || b.Len() > 0 {
			t.Errorf("%q: %v, printed %q", test.args, err, b.String())
		}
	}
}

func TestConstraint_ExplainsItself(t *testing.T) {
	var b strings.Builder
	must.ErrorIs(t, constraint(&b, []string{"-h"}), flag.ErrHelp)
	test.StrContains(t, b.String(), "nomad-driver-python constraint FILE|VERSIONS…\n")
}

// scheduler is what Nomad's checker of constraints needs.
type scheduler struct{ feasible.EvalCache }

func (*scheduler) Metrics() *structs.AllocMetric { return new(structs.AllocMetric) }

// meets reports whether Nomad places a job with the constraint on a node with the attribute.
func meets(attribute string, c *interpreter.Constraint) bool {
	constraint := &structs.Constraint{LTarget: "${attr." + interpreter.VersionsAttribute + "}", Operand: c.Operator,
		RTarget: c.Value}
	node := &structs.Node{Attributes: map[string]string{interpreter.VersionsAttribute: attribute}}
	return feasible.NewConstraintChecker(new(scheduler), []*structs.Constraint{constraint}).Feasible(node)
}

func TestConstraint_AgreesWithTheDriver(t *testing.T) {
	nodes := [][]interpreter.Interpreter{nodesInterpreters, nodesInterpreters[1:2], nodesInterpreters[2:3],
		nodesInterpreters[3:4], nodesInterpreters[3:]}
	for _, text := range []string{"", ">=3.8", ">=3.10", ">=3.12", "<3.12", "3.12", "3.9", "==3.12.9", "==3.12.8",
		"3.9.16", ">=3.13", ">=3.10,<3.12", "~=3.9", "!=3.12.*,>=3.10"} {
		wanted, err := interpreter.ParseSpecifier(text)
		must.NoError(t, err)
		c, err := interpreter.ConstraintFor(wanted)
		must.NoError(t, err)
		for n, node := range nodes {
			_, err := interpreter.Fitting(node, "", wanted)
			value, _ := attributes(node)["versions"].GetString()
			fits := c == nil || meets(value, c)
			test.Eq(t, (err == nil), fits,
				test.Sprintf("%q, node %d (%s): the constraint is met: %t, and the driver says %v", text, n, value, fits, err))
		}
	}
	// what the constraint can't say, the driver finds at the start
	wanted, _ := interpreter.ParseSpecifier(">=3.12.10,<3.13")
	c, err := interpreter.ConstraintFor(wanted)
	must.NoError(t, err, must.Sprintf("got %+v", c))
	must.SliceLen(t, 1, c.Partial, must.Sprintf("got %+v", c))
	_, err = interpreter.Fitting(nodesInterpreters[1:2], "", wanted)
	test.Error(t, err, test.Sprint("3.12.9 is taken for 3.12.10"))
}
