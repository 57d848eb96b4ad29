// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package interpreter

import (
	"errors"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func pep(t testing.TB, text string) Specifier {
	t.Helper()
	s, err := ParseSpecifier(text)
	must.NoError(t, err)
	return s
}

// node is what a node may have, in Find's order.
var node = []Interpreter{
	{Path: "/opt/python/3.13/bin/python3.13", Version: "3.13.1", Minor: "3.13", Implementation: "cpython"},
	{Path: "/usr/bin/python3.11", Real: "/usr/bin/python3.11", Names: []string{"/usr/bin/python3", "/usr/bin/python3.11"},
		Version: "3.11.2", Minor: "3.11", Implementation: "cpython"},
	{Path: "/opt/python/3.14/bin/python3.14", Version: "3.14.0rc1", Minor: "3.14", Implementation: "cpython"},
	{Path: "/usr/bin/pypy3.9", Version: "3.9.16", Minor: "3.9", Implementation: "pypy"},
}

func choose(found []Interpreter, path string, wanted Specifier) (Interpreter, error) {
	fitting, err := Fitting(found, path, wanted)
	if err != nil {
		return Interpreter{}, err
	}
	return fitting[0], nil
}

func TestFitting_ReturnsTheBestFirst(t *testing.T) {
	for _, test := range []struct{ path, wanted, want string }{
		{"", "", "3.13.1"},
		{"", "<3.13", "3.11.2"},
		{"", "3.11", "3.11.2"},
		{"", "<3.11", "3.9.16"},
		{"", ">3.13.1", "3.14.0rc1"},
		{"/usr/bin/python3", "", "3.11.2"},
		{"/usr/bin//python3.11", ">=3.11", "3.11.2"},
		{"/usr/bin/pypy3.9", "", "3.9.16"},
	} {
		got, err := choose(node, test.path, pep(t, test.wanted))
		if err != nil || got.Version != test.want {
			t.Errorf("%s %q: got %s, %v", test.path, test.wanted, got.Version, err)
		}
	}
}

func TestNoneFitsError_NamesTheNodesVersionsAndAConstraint(t *testing.T) {
	for _, test := range []struct {
		found                []Interpreter
		path, wanted, expect string
	}{
		{node, "", ">=3.15", `python >=3.15 is not on this node, which has 3.9.16 (pypy), 3.11.2, 3.13.1 and 3.14.0rc1; ` +
			`the job needs nodes that have it: constraint { attribute = "${attr.driver.python.versions}"; operator = ` +
			`"set_contains_any"; value = "3.15,3.16" }`},
		{node[1:2], "", "3.11.4", `python 3.11.4 is not on this node, which has 3.11.2; the job needs nodes that have ` +
			`it: constraint { attribute = "${attr.driver.python.versions}"; operator = "set_contains"; value = "3.11.4" }`},
		{node[1:2], "", ">=3.14,<3.12", `python >=3.14,<3.12 is not on this node, which has 3.11.2, and ">=3.14,<3.12" ` +
			`allows no Python from 3.8 on`},
		{nil, "", ">=3.15", `python >=3.15 is not on this node, which has none; the job needs`},
		{nil, "", "", `no python is on this node: install one, or see the plugin's option interpreters`},
		{nil, "", ">=3.8", `python >=3.8 is not on this node, which has none: install one`},
		{node[:2], "/bin/sh", "", `/bin/sh is not an interpreter that this node offers, which has ` +
			`/opt/python/3.13/bin/python3.13 (3.13.1) and /usr/bin/python3.11 (3.11.2): choose`},
		{nil, "/bin/sh", "", `which has none:`},
		{node, "/usr/bin/python3", ">=3.12", `/usr/bin/python3 is python 3.11.2, and >=3.12 is required`},
	} {
		_, err := choose(test.found, test.path, pep(t, test.wanted))
		var none *NoneFitsError
		if !errors.As(err, &none) || !strings.Contains(err.Error(), test.expect) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got  %v\nwant %s", err, test.expect)
		}
	}
}

func TestConstraintFor_ListsFittingVersions(t *testing.T) {
	for _, test := range []struct {
		wanted, operator, value, partial string
		open                             bool
	}{
		{"", "", "", "", false},
		{">=3.6", "", "", "", false},
		{">=3.8", "", "", "", false},
		{">=3.13", "set_contains_any", "3.13,3.14,3.15,3.16", "", true},
		{">=3.11,<3.13", "set_contains_any", "3.11,3.12", "", false},
		{">=3.11.4,<3.13", "set_contains_any", "3.11,3.12", "3.11", false},
		{"<3.10", "set_contains_any", "3.8,3.9", "", false},
		{"3.12", "set_contains_any", "3.12", "", false},
		{"==3.11.2", "set_contains", "3.11.2", "", false},
		{"==3.14.0rc1", "set_contains", "3.14.0rc1", "", false},
		{">=3.8,!=3.8.1", "set_contains_any", "3.8,3.9,3.10,3.11,3.12,3.13,3.14,3.15,3.16", "3.8", true},
	} {
		c, err := ConstraintFor(pep(t, test.wanted))
		if err != nil || (c == nil) != (test.value == "") {
			t.Errorf("%q: got %+v, %v", test.wanted, c, err)
			continue
		}
		if c != nil && (c.Operator != test.operator || c.Value != test.value || strings.Join(c.Partial,
			",") != test.partial || c.Open != test.open) {
			t.Errorf("%q: got %+v", test.wanted, c)
		}
	}
	for _, never := range []string{"==2.7.18", "<3.8", ">=3.12,<3.11", ">=4", "==3.7.1"} {
		c, err := ConstraintFor(pep(t, never))
		test.Error(t, err, test.Sprintf("%q: got %+v", never, c))
	}
}

func TestConstraint_IsFormattedLikeNomad(t *testing.T) {
	c := &Constraint{Operator: "set_contains_any", Value: "3.11,3.12"}
	const want = `constraint {
  attribute = "${attr.driver.python.versions}"
  operator  = "set_contains_any"
  value     = "3.11,3.12"
}
`
	test.Eq(t, want, c.Block())
}
