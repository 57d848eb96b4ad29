// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"reflect"
	"strings"
	"testing"
)

const script = `#!/usr/bin/env python3
"""A script."""
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "requests<3",
#
#   "rich", # nice
# ]
#
# [tool.uv]
# exclude-newer = "2023-10-16T00:00:00Z"
# ///

import requests
`

func TestReadScript_ReturnsTheMetadata(t *testing.T) {
	full := Script{RequiresPython: ">=3.11", Dependencies: []string{"requests<3", "rich"}}
	full.Tool.UV.NewerThan = "2023-10-16T00:00:00Z"
	for name, test := range map[string]struct {
		source string
		want   Script
	}{
		"a block":                   {script, full},
		"with Windows line endings": {strings.ReplaceAll(script, "\n", "\r\n"), full},
		"with a byte order mark": {"\uFEFF# /// script\n# requires-python = \">=3.11\"\n# ///\n",
			Script{RequiresPython: ">=3.11"}},
		"at the very end": {"# /// script\n# dependencies = [\"a\"]\n# ///",
			Script{Dependencies: []string{"a"}}},
		"empty": {"# /// script\n#\n# ///\n", Script{}},
		"beside another type of block": {"# /// other\n# a = 1\n# ///\n\n# /// script\n# requires-python = \"3.12\"\n# " +
			"///\n", Script{RequiresPython: "3.12"}},
		"no block":                {"print(1)\n", Script{}},
		"without an end":          {"# /// script\n# requires-python = \">=3.11\"\nimport os\n", Script{}},
		"without a space after #": {"#/// script\n#requires-python = \">=3.11\"\n#///\n", Script{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadScript([]byte(test.source))
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

func TestReadScript_ErrorsNameTheLine(t *testing.T) {
	head := "import os\n\n# /// script\n"
	for name, test := range map[string]struct{ source, want string }{
		"two blocks": {script + script, `line 18: a second "# /// script" block, after the one on line 3`},
		"invalid TOML": {head + "# # a comment\n# requires-python >=3.11\n# ///\n",
			"line 5: not valid TOML"},
		// the expression matches the longest block, so the first "# ///" is a part of the block, and is not TOML
		"a line that looks like an end": {head + "# dependencies = [\"a\",\n# ///\n# \"b\"]\n# ///\n", "line 5:"},
		"a key twice": {head + "# requires-python = \"3.11\"\n# requires-python = \"3.12\"\n# ///\n",
			"line 5:"},
		"a number for the version": {head + "#\n# requires-python = 3.11\n# ///\n",
			"line 5: not valid TOML, or a value of the wrong type: requires-python: "},
		"a table for the list": {head + "#\n# [dependencies]\n# requests = \"2\"\n# ///\n", "line 5: "},
		"with Windows line endings": {strings.ReplaceAll(head+"#\n# requires-python = 3.11\n# ///\n", "\n", "\r\n"),
			"line 5: not valid TOML, or a value of the wrong type: requires-python: "},
		"values that are nested deeply": {head + "# a = " + strings.Repeat("[", 50000) + "\n# ///\n", "line "},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadScript([]byte(test.source))
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %+v, %v, want %s", got, err, test.want)
			}
		})
	}
}
