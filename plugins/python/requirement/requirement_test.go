// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/python/index"
)

// hashOf is a well-formed hash.
func hashOf(c string) string { return "sha256:" + strings.Repeat(c, 64) }

// in reads these files instead of those of a task.
func in(files map[string]string) Reader {
	return func(name string) ([]byte, error) {
		content, ok := files[name]
		if !ok {
			return nil, fmt.Errorf("%q: %w", name, fs.ErrNotExist)
		}
		return []byte(content), nil
	}
}

var canonical = []struct{ written, want string }{
	{"Requests", "requests"},
	{"  zope.interface  ", "zope-interface"},
	{"A__b.-C", "a-b-c"},
	{"requests [ Socks , security,socks ] >= 2.8.1 , == 2.8.* ", "requests[security,socks]==2.8.*,>=2.8.1"},
	{"name[]", "name"},
	{"name (>=1, <2)", "name<2,>=1"},
	{"name~=1.4.2", "name~=1.4.2"},
	{"name===1.0-legacy", "name===1.0-legacy"},
	{"name!=1!2.0rc1.post2.dev3", "name!=1!2.0rc1.post2.dev3"},
	{"name==1.0+local.1", "name==1.0+local.1"},
	{"name>=1.0,>=1.0", "name>=1.0"},
	{"name;python_version<'3.8'", `name ; python_version < "3.8"`},
	{"name ; ((os_name=='a')and  (python_version<'3' or extra == 'x'))",
		`name ; os_name == "a" and (python_version < "3" or extra == "x")`},
	{"name ; os_name=='a' and python_version<'3' or (sys.platform == 'x' or extra == 'x')",
		`name ; os_name == "a" and python_version < "3" or sys_platform == "x" or extra == "x"`},
	{"name ; 'linux'  not in sys_platform", `name ; "linux" not in sys_platform`},
	{`name ; platform_version == '"'`, `name ; platform_version == '"'`},
	{"name@https://host/a.whl", "name @ https://host/a.whl"},
	{"name[b,a] @ https://user:word@host/a.whl#egg=name ; os_name == 'posix'",
		`name[a,b] @ https://user:word@host/a.whl#egg=name ; os_name == "posix"`},
}

func TestList_IsCanonical(t *testing.T) {
	for _, test := range canonical {
		s, err := List([]string{test.written})
		if err != nil || len(s.Lines) != 1 || s.Lines[0] != test.want {
			t.Errorf("%s is %v, not %s: %v", test.written, s, test.want, err)
			continue
		}
		again, err := List(s.Lines)
		if err != nil || !reflect.DeepEqual(s, again) {
			t.Errorf("%s is %v when it is read again: %v", test.want, again, err)
		}
	}
}

// pipSays prints how pip's own parser reads each text: name, extras, specifiers, URL, and whether its marker holds in
// some environments.
const pipSays = `
import json, re, sys
from pip._vendor.packaging.requirements import Requirement
def holds(r):
    return r.marker and [bool(r.marker.evaluate({'os_name': o, 'python_version': v, 'extra': e, 'sys_platform': s,
	'platform_version': p}))
        for o in ('a', 'posix') for v in ('2.7', '3.7', '3.12') for e in ('', 'x') for s in ('x',
	'linux') for p in ('"', '1')]
def say(text):
    r = Requirement(text)
    return [re.sub(r'[-_.]+', '-', r.name).lower(), sorted({e.lower() for e in r.extras}), str(r.specifier), r.url,
	holds(r)]
def refused(text):
    try: say(text)
    except Exception as e: return str(e)
json.dump([say(t) if sys.argv[1] == 'say' else refused(t) for t in json.load(sys.stdin)], sys.stdout)
`

func askPip(t *testing.T, what string, texts []string) []any {
	t.Helper()
	const python = "/usr/bin/python3"
	if err := exec.Command(python, "-c", "import pip._vendor.packaging.requirements").Run(); err != nil {
		t.Skip("there is no pip to compare with")
	}
	input, err := json.Marshal(texts)
	must.NoError(t, err)
	cmd := exec.Command(python, "-c", pipSays, what)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(input), &bytes.Buffer{}
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("pip: %v: %s", err, cmd.Stderr)
	}
	var answers []any
	must.NoError(t, json.Unmarshal(out, &answers))
	return answers
}

func TestList_MeansTheSameToPip(t *testing.T) {
	var written, want []string
	for _, test := range canonical {
		written, want = append(written, test.written), append(want, test.want)
	}
	before, after := askPip(t, "say", written), askPip(t, "say", want)
	for i := range before {
		if !reflect.DeepEqual(before[i], after[i]) {
			t.Errorf("%s is %v for pip, and %s is %v", written[i], before[i], want[i], after[i])
		}
	}
}

func TestList_RefusesWhatPipRefuses(t *testing.T) {
	texts := []string{
		"", "-", "_a", "a-", "a b", "a[", "a[b", "a[b c]", "a[,]", "a==", "a=1", "a>=1,,<2", "a(>=1", "a()", "a>=1)", "a @",
		"a @ nohost",
		"a ;", "a ; x", "a ; python_version", "a ; python_version <", "a ; python_version < 3", "a ; (python_version < '3'",
		"a ; python_version < '3' and", "a ; python_version < '3' xor os_name == 'a'", "a ; os_name == 'a",
		"a ; os_name is 'a'",
		"a ; 'a' == 'b' extra", "a~=1", "a>=1.*", "a<1+local", "a>=1.0.x", "a @ https://host/x; os_name == 'a'",
	}
	answers := askPip(t, "refused", texts)
	for i, text := range texts {
		// setuptools of old
		if answers[i] == nil && !slices.Contains([]string{"a==", "a~=1", "a>=1.*", "a<1+local", "a>=1.0.x"}, text) {
			t.Errorf("pip takes %q: the test is wrong", text)
		}
		if s, err := List([]string{text}); err == nil {
			t.Errorf("%q is taken: %v", text, s.Lines)
		}
	}
}

func TestList_SuggestsWhatIsRight(t *testing.T) {
	long := strings.Repeat("(", 60)
	for text, says := range map[string]string{
		"./pkg":                               "find_links",
		"../pkg":                              "find_links",
		"/srv/pkg.whl":                        "find_links",
		"dir/pkg":                             "find_links",
		"~/pkg":                               "find_links",
		`C:\pkg`:                              "find_links",
		"pkg-1.0-py3-none-any.whl":            "find_links",
		"pkg.tar.gz":                          "find_links",
		"file:///srv/pkg.whl":                 "find_links",
		"pkg @ file:///srv/pkg.whl":           "find_links",
		"pkg @ ./pkg.whl":                     "find_links",
		"git+https://host/pkg":                "build a wheel",
		"pkg @ git+ssh://git@host/pkg":        "build a wheel",
		"pkg @ hg+https://host/pkg":           "build a wheel",
		"git@host:org/pkg":                    "build a wheel",
		"-e .":                                "option",
		"--index-url https://host":            "option",
		"https://host/pkg.tar.gz":             "NAME @ https://",
		"pkg @ ftp://host/pkg.whl":            "https://",
		"pkg @ http://host/pkg.whl":           "https://",
		"pkg @ http://192.0.2.1/pkg.whl":      "https://",
		"pkg @ http://127.0.0.1.host/pkg.whl": "https://",
		"pkg @ http://host/pkg.whl#md5=" + hashOf("a"): "https://",
		"pkg @ https://host/ü.whl":                     "encode",
		"pkg @ https://host/a.whl;os_name=='a'":        "",
		"pkg==${VERSION}":                              "template",
		"pkg --hash=md5:" + strings.Repeat("a", 32):    "sha256",
		"pkg==1 --hash=sha256:abc":                     "64",
		"pkg @ https://h/a.whl#sha256=" + strings.Repeat("a", 64) + "&sha256=" + strings.Repeat("b", 64): "several hashes",
		"pkg==1 --hash=" + hashOf("g"):                  "hexadecimal",
		"pkg --hash=" + hashOf("a"):                     "pin",
		"pkg==1.* --hash=" + hashOf("a"):                "pin",
		"pkg==1 --config-settings x=y":                  "only --hash",
		"pkg==1 --index-url https://host":               "line of its own",
		"pkg\x00==1":                                    "control",
		"pkg\u2028other":                                "control",
		"pkg==1\nother":                                 "several lines",
		"pkg\xff":                                       "UTF-8",
		"pkg ; os_name == 'a -b'":                       "",
		"pkg ; os_name == 'a' or " + long:               "parentheses",
		"pkg ; python_version == sys_platform":          "text in quotes",
		"pkg ; 'dev' in dependency_groups":              "variable",
		"pkg 1.0":                                       "NAME==VERSION",
		"# nothing":                                     "empty",
		`pkg==1 --hash=` + hashOf("a") + ` "`:           "quote",
		"pkg==1 --hash=" + hashOf("a") + " other":       "",
		"pkg @ https://user:secret@host/pkg.whl extra":  "understood",
		"pkg @ http://user:secret@host/pkg.whl":         "https://",
		"https://user:secret@host/pkg.tar.gz":           "NAME @ https://",
		"pkg @ git+https://user:secret@host/pkg":        "build a wheel",
		"pkg @ https://user:secret@host/pkg.whl ; nope": "marker",
	} {
		s, err := List([]string{"first==1 --hash=" + hashOf("0"), text})
		switch {
		case err == nil:
			t.Errorf("%q is taken: %q", text, s.Lines)
		case !strings.HasPrefix(err.Error(), "requirement 2: "):
			t.Errorf("%q: it is not said where: %v", text, err)
		case !strings.Contains(err.Error(), says):
			t.Errorf("%q: %v, without %q", text, err, says)
		case strings.Contains(err.Error(), "secret") || strings.ContainsAny(err.Error(), "\x00\n"):
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestList_TakesHTTPFromLocalhostOrWithAHash(t *testing.T) {
	for _, text := range []string{
		"pkg @ http://127.0.0.1:8000/pkg.whl", "pkg @ http://localhost/pkg.whl", "pkg @ http://[::1]:80/pkg.whl",
		"pkg @ http://host/pkg.whl --hash=" + hashOf("a"),
		"pkg @ http://host/pkg.whl#sha256=" + strings.Repeat("a", 64),
	} {
		_, err := List([]string{text})
		test.NoError(t, err)
	}
}

func TestList_TakesTheNameFromAWheelsURL(t *testing.T) {
	s, err := List([]string{"https://host/dir/My_Pkg-1.0-py3-none-any.whl ; os_name == 'a'"})
	want := `my-pkg @ https://host/dir/My_Pkg-1.0-py3-none-any.whl ; os_name == "a"`
	must.NoError(t, err, must.Sprint(s))
	test.Eq(t, want, s.Lines[0], test.Sprint(s))
	test.SliceEqOp(t, []string{"https://host/dir/My_Pkg-1.0-py3-none-any.whl"}, s.URLs, test.Sprint("URLs are"))
}

func TestSet_ChecksThatURLsNameWheels(t *testing.T) {
	for text, ok := range map[string]bool{
		"a>=1": true,
		"a @ https://host/a-1-py3-none-any.whl?token=x#egg=a":    true,
		"a @ https://host/a-1.tar.gz":                            false,
		"a @ https://host/a-1.tar.gz#a-1-py3-none-any.whl":       false,
		"a @ https://user:secret@host/a-1.zip?x=.whl":            false,
		"a @ https://host/a-1.whl.zip#sha256=" + hashOf("a")[7:]: false,
	} {
		s, err := List([]string{text})
		must.NoError(t, err)
		err = s.CheckWheels()
		must.EqOp(t, ok, err == nil, must.Sprint(text))
		if err != nil {
			must.StrContains(t, err.Error(), "nothing is built from source")
			must.StrNotContains(t, err.Error(), "secret")
		}
	}
}

func TestList_RequiresHashesOfAllOrNone(t *testing.T) {
	hash := " --hash=" + hashOf("b") + " --hash " + hashOf("A") + " --hash=" + hashOf("b")
	url := "u @ https://host/u.whl#sha256=" + strings.Repeat("c", 64)
	s, err := List([]string{"b==1" + hash, url, "a==1 ; os_name == 'a'" + hash})
	must.NoError(t, err)
	hash = " --hash=" + hashOf("a") + " --hash=" + hashOf("b")
	want := []string{`a==1 ; os_name == "a"` + hash, "b==1" + hash, "u @ https://host/u.whl --hash=" + hashOf("c")}
	must.SliceEqOp(t, want, s.Lines, must.Sprintf("%q, %t", s.Lines, s.Hashed))
	test.True(t, s.Hashed, test.Sprintf("%q, %t", s.Lines, s.Hashed))
	if s, err = List([]string{"a==1", url}); err != nil || s.Hashed {
		t.Errorf("a URL with a hash asks for hashes of all others: %v, %v", s, err)
	}
	if _, err = List([]string{"b==1" + hash, "a==1"}); err == nil || !strings.HasPrefix(err.Error(),
		`requirement 2: "a==1" has no hash`) {
		t.Error(err)
	}
}

func TestJoin_IsWhatBothRequire(t *testing.T) {
	list := func(lines ...string) *Set {
		s, err := List(lines)
		must.NoError(t, err)
		return s
	}
	a, b := list("b", "a>=1"), list("b", "c")
	a.Indexes, b.Indexes = index.Sources{Extra: []string{"https://z", "https://y"}, Offline: true},
		index.Sources{URL: "https://x", Extra: []string{"https://y"}}
	a.Constraints = []string{"d<1"}
	got, err := a.Join(b)
	want := &Set{
		Lines: []string{"a>=1", "b", "c"}, Constraints: []string{"d<1"},
		Indexes: index.Sources{URL: "https://x", Extra: []string{"https://z", "https://y"}, Offline: true},
	}
	must.NoError(t, err)
	test.Eq(t, want, got)
	test.SliceEqOp(t, []string{"a>=1", "b"}, a.Lines, test.Sprint("one of them has changed"))
	hashed := list("a==1 --hash=" + hashOf("a"))
	_, err = hashed.Join(b)
	test.Error(t, err, test.Sprint("hashes of some are taken"))
	for _, other := range []*Set{nil, {}, hashed} {
		got, err := hashed.Join(other)
		must.NoError(t, err, must.Sprintf("with %v: %v", other, got))
		must.True(t, got.Hashed, must.Sprintf("with %v: %v", other, got))
		test.SliceEqOp(t, hashed.Lines, got.Lines, test.Sprintf("with %v: %v", other, got))
		got, err = other.Join(hashed)
		must.NoError(t, err, must.Sprintf("of %v: %v", other, got))
		test.True(t, got.Hashed, test.Sprintf("of %v: %v", other, got))
	}
	_, err = (&Set{UVLock: &UVLock{}}).Join(b)
	test.Error(t, err, test.Sprint("a lock and more is taken"))
	_, err = b.Join(&Set{Indexes: index.Sources{URL: "https://other"}})
	test.Error(t, err, test.Sprint("two indexes are taken"))
}

var errTest = errors.New("not this one")
