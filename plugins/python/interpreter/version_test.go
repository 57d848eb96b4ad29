// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package interpreter

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func parse(t testing.TB, text string) Specifier {
	t.Helper()
	s, err := ParseSpecifier(text)
	must.NoError(t, err)
	return s
}

func TestSpecifier_AllowsVersionsOfPEP440(t *testing.T) {
	for _, test := range []struct {
		specifier, version string
		want               bool
	}{
		{"", "3.11.2", true},
		{"", "3.13.0rc1", true},
		{"", "no version", false},
		{">=3.11,<3.14", "3.13.9", true},
		{">=3.11,<3.14", "3.14.0", false},
		{" >= 3.11 , < 3.14 , ", "3.11.0", true},
		{"<3.13", "3.13.0rc1", false},
		{"<3.13", "3.12.9", true},
		{"<3.13.0rc2", "3.13.0rc1", true},
		{">=3.13", "3.13.0rc1", false},
		{">=3.13.0rc1", "3.13.0rc1", true},
		{">=3.12", "3.13.0rc1", true},
		{"~=3.11", "3.14.0", true},
		{"~=3.11", "4.0.0", false},
		{"~=3.11.4", "3.11.9", true},
		{"~=3.11.4", "3.11.3", false},
		{"~=3.11.4", "3.12.0", false},
		{"~=3.13.0rc1", "3.13.4", true},
		{"~=3.13.0rc1", "3.14.0", false},
		{"==3.12.*", "3.12.4", true},
		{"==3.12.*", "3.12.0rc1", true},
		{"==3.12.*", "3.1.2", false},
		{"==V3.08.*", "3.8.1", true},
		{"!=3.12.*", "3.12.4", false},
		{"!=3.12.3,>=3.12", "3.12.3", false},
		{"!=3.12.3,>=3.12", "3.12.4", true},
		{"===3.11.2", "3.11.2", true},
		{"===3.11", "3.11.0", false},
		{"==3.11", "3.11.0", true},
		{">3.11", "3.11.1", true},
		{"<=3.11", "3.11.1", false},
		{"3", "3.11.2", true},
		{"3.12", "3.12.4", true},
		{"3.12", "3.13.0", false},
		{"3.12.4", "3.12.4", true},
		{"3.12.4", "3.12.40", false},
		{"3.12.*", "3.12.40", true},
		{"3.13.0rc1", "3.13.0rc1", true},
		{"3.13.0rc1", "3.13.0", false},
	} {
		if got := parse(t, test.specifier).Allows(test.version); got != test.want {
			t.Errorf("%q allows %s: %t", test.specifier, test.version, got)
		}
	}
}

func TestParseSpecifier_SuggestsWhatIsRight(t *testing.T) {
	for text, want := range map[string]string{
		"^3.11":                  `write ">=3.11,<4" for "^3.11"`,
		"3.11,3.12":              `"3.11" lacks an operator`,
		">=3.11 <3.14":           `write versions such as ">=3.11,<3.14"`,
		"=3.11":                  `write versions`,
		">=3.11||<3.9":           `write versions`,
		"*":                      `write versions`,
		">=3.11.*":               `write versions`,
		"~=3":                    `write versions`,
		">=":                     `write versions`,
		"python3.11":             `write versions`,
		"3.13t":                  `write versions`,
		"==99999999999999999999": `write versions`,
		"==3.11v3":               `write versions`,
		"/usr/bin/python3":       `write versions`,
		strings.Repeat("3", 101): `longer than 100`,

		">=3" + strings.Repeat(",>=3", 200): `more than 200`,
	} {
		_, err := ParseSpecifier(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestSpecifier_ListsItsMinors(t *testing.T) {
	for text, want := range map[string]string{
		">=3.13":          "3.13 3.14 3.15 3.16",
		">=3.11,<3.14":    "3.11 3.12 3.13",
		">=3.11.4,<3.13":  "3.11 3.12",
		"~=3.14":          "3.14 3.15 3.16",
		"~=3.11.4":        "3.11",
		"3.12":            "3.12",
		"3.12.4":          "3.12",
		"==3.20.*":        "3.20",
		">=3.15,<3.19":    "3.15 3.16 3.17 3.18",
		">3.11,<3.12":     "3.11",
		">=3.10,!=3.11.*": "3.10 3.12 3.13 3.14 3.15 3.16",
		"<3.2":            "3.0 3.1",
		"<3":              "",
		">=4":             "",
		">=3.999999":      "",
	} {
		test.Eq(t, want, strings.Join(parse(t, text).Minors(), " "), test.Sprintf("%q has", text))
	}
	test.SliceLen(t, 17, parse(t, "").Minors(), test.Sprint("all are"))
}

func TestSpecifier_CoversWholeMinors(t *testing.T) {
	s := parse(t, ">=3.11.4,!=3.13.1,<3.15")
	for minor, want := range map[string]bool{"3.10": false, "3.11": false, "3.12": true, "3.13": false, "3.14": true,
		"3.15": false} {
		if s.Covers(minor) != want {
			t.Errorf("%s is covered: %t", minor, !want)
		}
	}
}

func TestSpecifier_KnowsAnExactVersion(t *testing.T) {
	for text, want := range map[string]string{
		"3.11.2": "3.11.2", "==3.11.2": "3.11.2", "==3.11": "3.11.0", "==3.13rc1": "3.13.0rc1", "===3.13.0rc1": "3.13.0rc1",
		"3.11": "", "==3.11.*": "", ">=3.11.2": "", "==3.11.2,<3.12": "", "": "",
	} {
		got, ok := parse(t, text).Exact()
		must.Eq(t, want, got, must.Sprintf("%q is exactly", text))
		test.Eq(t, (want != ""), ok, test.Sprintf("%q is exactly", text))
	}
}

func TestSpecifier_AndIsTheIntersection(t *testing.T) {
	for _, test := range []struct{ a, b, want string }{
		{"", "", ""},
		{"", ">=3.11", ">=3.11"},
		{"3.12", "", "3.12"},
		{">=3.11", ">=3.11", ">=3.11"},
		{">=3.11", "<3.14", ">=3.11,<3.14"},
		{"3.12", ">=3.11,<3.14", "==3.12.*,>=3.11,<3.14"},
	} {
		both := parse(t, test.a).And(parse(t, test.b))
		if both.String() != test.want {
			t.Errorf("%q and %q is %q, want %q", test.a, test.b, both, test.want)
		}
		again := parse(t, both.String())
		for _, v := range versions {
			want := parse(t, test.a).Allows(v) && parse(t, test.b).Allows(v)
			if both.Allows(v) != want || again.Allows(v) != want {
				t.Errorf("%q and %q allow %s: %t, and as text %t", test.a, test.b, v, both.Allows(v), again.Allows(v))
			}
		}
	}
}

func TestCompareVersions_Orders(t *testing.T) {
	got := []string{"3.12.0", "3.13.0rc1", "3.9.16", "3.13.0", "nonsense", "3.13.0b2", "3.10.1"}
	slices.SortFunc(got, CompareVersions)
	test.Eq(t, []string{"nonsense", "3.9.16", "3.10.1", "3.12.0", "3.13.0b2", "3.13.0rc1",
		"3.13.0"}, got)
	must.True(t, IsPreRelease("3.13.0rc1"), must.Sprint("pre-releases are not known as such"))
	must.False(t, IsPreRelease("3.13.0"), must.Sprint("pre-releases are not known as such"))
	test.False(t, IsPreRelease("nonsense"), test.Sprint("pre-releases are not known as such"))
}

var versions = []string{"2.7.18", "3.6.15", "3.9.16", "3.11.0", "3.11.2", "3.11.4", "3.12.0a1", "3.12.0rc2", "3.12.0",
	"3.12.4", "3.13.0b1", "3.13.0rc1", "3.13.0", "3.13.1", "3.14.0", "4.0.0"}

// reference is Python packaging's own implementation, which comes with pip.
const reference = `
import json, sys
from pip._vendor.packaging.specifiers import SpecifierSet
specifiers, versions = json.load(sys.stdin)
print(json.dumps([[SpecifierSet(s).contains(v, prereleases=True) for v in versions] for s in specifiers]))`

func TestSpecifier_AgreesWithPackaging(t *testing.T) {
	if exec.Command("python3", "-c", "import pip._vendor.packaging.specifiers").Run() != nil {
		t.Skip("there is no python3 that has pip")
	}
	specifiers := []string{"", ">=3.11,<3.14"}
	for _, bound := range []string{"3", "3.12", "3.12.0", "3.12.4", "3.13.0rc1", "3.12.0rc2", "3.13b1", "3.11.post1",
		"3.12.dev0"} {
		for _, operator := range []string{">=", "<=", ">", "<", "==", "!=", "==="} {
			specifiers = append(specifiers, operator+bound)
		}
	}
	for _, bound := range []string{"3.11", "3.12.0", "3.12.4", "3.11.post1"} {
		specifiers = append(specifiers, "~="+bound, "=="+bound+".*", "!="+bound+".*")
	}
	specifiers = slices.DeleteFunc(specifiers, func(s string) bool {
		return strings.Contains(s, ".post1.*") // newer releases of packaging refuse it
	})
	question, err := json.Marshal([][]string{specifiers, versions})
	must.NoError(t, err)
	cmd := exec.Command("python3", "-c", reference)
	cmd.Stdin = strings.NewReader(string(question))
	out, err := cmd.Output()
	must.NoError(t, err)
	var want [][]bool
	must.NoError(t, json.Unmarshal(out, &want))
	for i, text := range specifiers {
		s := parse(t, text)
		for j, v := range versions {
			got := s.Allows(v)
			test.Eq(t, want[i][j], got, test.Sprintf("%q allows %s: %t, but packaging says", text, v, got))
		}
	}
}

func FuzzParseSpecifier(f *testing.F) {
	for _, s := range []string{"", "3.12", ">=3.11,<3.14", "~=3.11.4rc1", "===3.11", "==1!3.*", "!=3.0.post1.*",
		"==3.11+local", ">=3.11.dev1", "==3-1.*", "^3"} {
		f.Add(s, "3.13.0rc1", ">=3.9")
	}
	f.Fuzz(func(t *testing.T, text, version, other string) {
		s, err := ParseSpecifier(text)
		if err != nil {
			return
		}
		s.Allows(version)
		s.Allows("3.11.2")
		s.Exact()
		CompareVersions(text, version)
		if len(text) < 50 { // as it is slow
			s.Minors()
			s.Covers("3.11")
		}
		if o, err := ParseSpecifier(other); err == nil {
			both := s.And(o)
			test.Eq(t, (s.Allows("3.11.2") && o.Allows("3.11.2")), both.Allows("3.11.2"),
				test.Sprintf("%q and %q is %q", text, other, both))
			if len(both.String()) <= maxLength {
				_, err := ParseSpecifier(both.String())
				test.NoError(t, err, test.Sprintf("%q and %q can't be read again", text, other))
			}
		}
	})
}
