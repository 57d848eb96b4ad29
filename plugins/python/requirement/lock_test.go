// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

func lockWith(packages string) string {
	return "lock-version = \"1.0\"\ncreated-by = \"test\"\n" + packages
}

// wheelOf is a package with one wheel.
func wheelOf(name, more string) string {
	return "[[packages]]\nname = \"" + name + "\"\nversion = \"1.0\"\n" + more + "\nwheels = [{name = \"x.whl\", url " +
		"= \"https://h/x.whl\", hashes = {sha256 = \"" + strings.Repeat("a", 64) + "\"}}]\n"
}

func TestPylock_BecomesLinesWithHashes(t *testing.T) {
	lock := `
lock-version = "1.0"
requires-python = ">= 3.9, <4"
environments = ["sys_platform == 'linux'"]
extras = ["dev"]
dependency-groups = ["docs", "main"]
default-groups = ["Main"]
created-by = "uv"
[[packages]]
name = "Zope.Interface"
version = "6.0"
marker = "python_version < '3.13' and ('dev' in extras or 'main' in dependency_groups)"
index = "https://pypi.org/simple/"
sdist = { url = "https://h/zope.tar.gz", size = 3, hashes = { sha256 = "` + strings.Repeat("C", 64) + `", md5 = "x" } }
[[packages.wheels]]
name = "zope.whl"
upload-time = 2024-01-01T00:00:00Z
path = "wheels/zope.whl"
hashes = { sha256 = "` + strings.Repeat("b", 64) + `" }
[[packages.wheels]]
url = "https://h/zope2.whl"
hashes = { sha512 = "` + strings.Repeat("a", 128) + `" }
[[packages]]
name = "direct"
archive = { url = "https://third/direct.zip", subdirectory = "src",
	hashes = { sha256 = "` + strings.Repeat("d", 64) + `" } }
[tool.uv]
any = [[1], [2]]
` + wheelOf("docs-only", `marker = "'docs' in dependency_groups"`) +
		wheelOf("dev-only", `marker = "'dev' in extras and os_name == 'posix'"`) +
		wheelOf("always", `marker = "'dev' not in extras or os_name == 'posix'"`) +
		wheelOf("private", "index = \"https://user:word@private/simple\"\nrequires-python = \">=3.10\"")
	s, err := Lock("local/pylock.app.toml", in(map[string]string{"local/pylock.app.toml": lock}))
	must.NoError(t, err)
	a := " --hash=" + hashOf("a")
	want := &Set{
		Lines: []string{
			"always==1.0" + a,
			"direct @ https://third/direct.zip#subdirectory=src --hash=" + hashOf("d"),
			"private==1.0" + a,
			`zope-interface==6.0 ; python_version < "3.13" ` +
				`--hash=` + hashOf("b") + " --hash=" + hashOf("c") + " --hash=sha512:" + strings.Repeat("a", 128),
		},
		Hashed: true, Complete: true, RequiresPython: ">= 3.9,<4,>=3.10",
		Indexes: index.Sources{Extra: []string{"https://user:word@private/simple"}, FindLinks: []string{"local/wheels"}},
		URLs:    []string{"https://third/direct.zip#subdirectory=src"},
	}
	test.Eq(t, want, s, test.Sprintf("got\n%+v\nnot", s))
	again, err := List(s.Lines)
	must.NoError(t, err, must.Sprintf("read again: %v", again))
	test.SliceEqOp(t, s.Lines, again.Lines, test.Sprintf("read again: %v", again))
}

func TestPylock_IgnoresBadRequiresPython(t *testing.T) {
	for text, want := range map[string]string{
		">=3.8": ">=3.8", " >= 3.8, !=3.9.* ": ">= 3.8,!=3.9.*", ">=3.6.*": "", "3.8": "", " (>=3.8)": "", "": "", " ": "",
		"<4,>=": "",
	} {
		lock := lockWith(wheelOf("a", `requires-python = "`+text+`"`))
		s, err := Lock("pylock.toml", in(map[string]string{"pylock.toml": lock}))
		must.NoError(t, err, must.Sprintf("%q: %+v", text, s))
		test.Eq(t, want, s.RequiresPython, test.Sprintf("%q: %+v", text, s))
	}
}

func TestPylock_CombinesRequiresPython(t *testing.T) {
	lock := lockWith("")
	for n := range 3000 {
		lock += wheelOf(fmt.Sprint("p", n), fmt.Sprintf("requires-python = \">=3.8, !=3.9.%d, <4\"", n%100))
	}
	s, err := Lock("pylock.toml", in(map[string]string{"pylock.toml": lock}))
	must.NoError(t, err)
	wanted, err := interpreter.ParseSpecifier(s.RequiresPython)
	if err != nil || len(s.RequiresPython) < 500 || !wanted.Allows("3.11.2") || wanted.Allows("3.9.99") ||
		wanted.Allows("3.7.0") {
		t.Errorf("%s: %v", s.RequiresPython, err)
	}
}

func TestPylock_RefusesOtherSystems(t *testing.T) {
	for environments, fits := range map[string]bool{
		`[]`: true,
		`["sys_platform == 'win32'", "'linux' == sys_platform and python_version < '3.12'"]`: true,
		`["sys_platform != 'win32'"]`:                              true,
		`["sys_platform == 'linux' and platform_machine == 'x'"]`:  true, // not known here
		`["python_version >= '3.9'"]`:                              true,
		`["sys_platform == 'win32'", "os_name != 'posix'"]`:        false,
		`["platform_system == 'Darwin' and python_version < '4'"]`: false,
	} {
		lock := lockWith("environments = " + environments + "\n" + wheelOf("a", ""))
		_, err := Lock("pylock.toml", in(map[string]string{"pylock.toml": lock}))
		if fits != (err == nil) || !fits && !strings.Contains(err.Error(), "not for Linux") {
			t.Errorf("%s: %v", environments, err)
		}
	}
}

func TestPylock_RefusesWhatCannotBeChecked(t *testing.T) {
	const head = "[[packages]]\nname = \"a\"\nversion = \"1\"\n"
	for content, says := range map[string]string{
		"":                                 "no lock-version",
		"lock-version = \"2.0\"":           "2.0",
		"lock-version = 1":                 "not such a lock",
		"lock-version = \"1.0\"":           "no packages",
		"x = [\n1,\nno]":                   "pylock.toml:3: this is not TOML",
		lockWith("packages = 3"):           "not such a lock",
		lockWith("[[packages]]\n"):         "number 1",
		lockWith(head):                     "no files",
		lockWith(wheelOf("../x", "")):      "not one of a package",
		lockWith(wheelOf("-x", "")):        "not one of a package",
		lockWith(wheelOf("a", "marker='")): "TOML",
		lockWith(wheelOf("a", `marker = "extras in 'dev'"`)):                                "lists",
		lockWith(wheelOf("a", `marker = "'dev' == extras"`)):                                "lists",
		lockWith(wheelOf("a", `marker = "nope == 'x'"`)):                                    "variable",
		lockWith(wheelOf("a", `index = "file:///x"`)):                                       "index",
		lockWith(head + "vcs = {type = \"git\", url = \"https://h/x\", commit-id = \"1\"}"): "repository",
		lockWith(head + "directory = {path = \".\", editable = true}"):                      "--no-emit-project",
		lockWith(head + "archive = {path = \"a.zip\", hashes = {sha256 = \"\"}}"):           "archive of the node",
		lockWith(head + "archive = {url = \"https://h/a.zip\"}"):                            "no hash that is safe",
		lockWith(head + "archive = {url = \"https://h/a.zip -x\", hashes = {sha256 = \"" + strings.Repeat("a", 64) +
			"\"}}"): "only --hash",
		lockWith(head + "wheels = [{path = \"a.whl\", hashes = {md5 = " +
			"\"x\"}}]"): "no hash that is safe",
		lockWith(head + "wheels = [{path = \"a.whl\", hashes = {sha256 = \"x\"}}]"):                    "64",
		lockWith(strings.Replace(wheelOf("a", ""), "url = \"https://h/x.whl\"", "path = \"../x\"", 1)): "below",
		lockWith(strings.Replace(wheelOf("a", ""), "url = \"https://h/x.whl\"", "path = \"/x\"", 1)):   "below",
		lockWith(strings.Replace(wheelOf("a", ""), "url = \"https://h/x.whl\"", "path = \"-d/x\"", 1)): "hyphen",
		lockWith(strings.Replace(wheelOf("a", ""), "\"1.0\"", "\"1.*\"", 1)):                           "version",
		lockWith(strings.Replace(wheelOf("a", ""), "\"1.0\"", "\"1 --pre\"", 1)):                       "only --hash",
	} {
		s, err := Lock("pylock.toml", in(map[string]string{"pylock.toml": content}))
		if err == nil {
			t.Errorf("%q is taken: %+v", content, s)
		} else if m := err.Error(); !strings.HasPrefix(m, "pylock.toml") || !strings.Contains(m, says) || strings.Contains(m,
			"\n") {
			t.Errorf("%q: %v, without %q", content, err, says)
		}
	}
}

func TestLock_IsChosenByName(t *testing.T) {
	for _, name := range []string{"lock.toml", "pylock.a.b.toml", "poetry.lock", "Pipfile.lock"} {
		_, err := Lock(name, in(map[string]string{name: ""}))
		test.ErrorContains(t, err, "pylock.toml", test.Sprint(name))
	}
}

func TestUVLock_ReadsItsProject(t *testing.T) {
	const lock = "version = 1\nrevision = 1\nrequires-python = \">=3.11\"\n[[package]]\nname = \"a\"\n"
	read := in(map[string]string{"app/uv.lock": lock, "app/pyproject.toml": "[project]", "app.py.lock": lock,
		"app.py": "# ///", "d/uv.lock": lock, "e/uv.lock": "a = 1"})
	for name, want := range map[string]*UVLock{
		"app/uv.lock": {Lock: []byte(lock), Project: []byte("[project]")},
		"app.py.lock": {Lock: []byte(lock), Project: []byte("# ///"), Script: true},
	} {
		s, err := Lock(name, read)
		must.NoError(t, err, must.Sprint(name))
		must.Eq(t, &Set{UVLock: want, Complete: true, RequiresPython: ">=3.11"}, s, must.Sprint(name))
		test.False(t, s.Empty(), test.Sprint(name))
	}
	for name, says := range map[string]string{"d/uv.lock": "beside it", "e/uv.lock": "no version",
		"f/uv.lock": "failed to read"} {
		_, err := Lock(name, read)
		test.ErrorContains(t, err, says, test.Sprint(name))
	}
}

func TestUVLock_NamesItsIndexes(t *testing.T) {
	lock := "version = 1\nrequires-python = \">=3.11\"\n"
	for _, source := range []string{
		`virtual = "."`, `registry = "https://pypi.org/simple"`, `registry = "https://b.example.com/simple"`,
		`registry = "../wheels"`,
		`registry = "http://a.example.com/simple/"`, `registry = "https://b.example.com/simple"`,
		`url = "https://c.example.com/x.whl"`, `git = "https://d.example.com/x"`,
	} {
		lock += "[[package]]\nname = \"a\"\nsource = { " + source + " }\n"
	}
	files := map[string]string{"uv.lock": lock, "pyproject.toml": "[project]"}
	s, err := Lock("uv.lock", in(files))
	must.NoError(t, err, must.Sprintf("%+v", s))
	test.SliceEqOp(t, []string{"https://b.example.com/simple", "http://a.example.com/simple/"}, s.Indexes.Extra,
		test.Sprintf("%+v", s))
	for _, wrong := range []string{"https:///simple", "http://h/\\u0007", "https://h/${TOKEN}"} {
		files["uv.lock"] = lock + "[[package]]\nname = \"a\"\nsource = { registry = \"" + wrong + "\" }\n"
		if _, err := Lock("uv.lock", in(files)); err == nil || !strings.HasPrefix(err.Error(), "uv.lock: package \"a\"") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	for n := range 100 {
		lock += fmt.Sprintf("[[package]]\nname = \"a\"\nsource = { registry = \"https://h/%d\" }\n", n)
	}
	files["uv.lock"] = lock
	_, err = Lock("uv.lock", in(files))
	test.ErrorContains(t, err, "more than 50 indexes")
}

// A decoder that recurses without a bound would end the process.
func TestLock_IsBounded(t *testing.T) {
	many := strings.Repeat("k.k=1\n", 100_000)
	for _, content := range []string{
		"a = " + strings.Repeat("[", 4_000_000), "a = " + strings.Repeat("[\"]\", ", 700_000),
		"a = " + strings.Repeat("[ #]\n", 700_000),
		"a = " + strings.Repeat("[''''']'''', \"\\\"]\", ", 150_000), strings.Repeat("a={", 1_000_000), strings.Repeat("a.",
			2_000_000) + "a = 1",
		"[" + strings.Repeat("a", 100_000) + "]\n" + many, "  [\"" + strings.Repeat("a", 100_000) + "\"]\n" + many,
		strings.Repeat("a", 100_000) + " = {" + strings.ReplaceAll(many, "\n", ","),
		strings.Repeat(" ", 5<<20),
	} {
		start := time.Now()
		_, err := Lock("pylock.toml", in(map[string]string{"pylock.toml": content}))
		if err == nil || !strings.HasPrefix(err.Error(), "pylock.toml") {
			t.Errorf("%.40s: %v", content, err)
		}
		took := time.Since(start)
		test.False(t, took > 20*time.Second, test.Sprintf("%.40s: it took %s", content, took))
	}
}

func FuzzPylock(f *testing.F) {
	f.Add(lockWith(wheelOf("a", `marker = "'x' in extras or os_name == 'a' and 'y' not in dependency_groups"`)))
	f.Add(lockWith(wheelOf("a", `index = "https://i/simple"`) + "[[packages]]\nname='b'\n" +
		"archive={url='https://h/b.zip',subdirectory='c&d',hashes={sha256='" + strings.Repeat("d", 64) + "'}}"))
	f.Add(lockWith("[[packages]]\nname='b'\nversion='1+x'\nwheels=[{path='d/e.whl',hashes={sha384='" + strings.Repeat("d",
		96) + "'}}]"))
	f.Fuzz(func(t *testing.T, content string) {
		s, err := Lock("pylock.toml", in(map[string]string{"pylock.toml": content}))
		if err != nil {
			test.False(t, strings.ContainsAny(err.Error(), "\n\x00"), test.Sprint(err))
			return
		}
		again, err := File("r.txt", in(map[string]string{"r.txt": strings.Join(s.Lines, "\n")}))
		if err != nil {
			t.Fatalf("%q: %v", s.Lines, err)
		}
		must.SliceEqOp(t, s.Lines, again.Lines, must.Sprintf("%q becomes", s.Lines))
		must.Eq(t, s.Hashed, again.Hashed, must.Sprintf("%q becomes", s.Lines))
		test.SliceEqOp(t, s.URLs, again.URLs, test.Sprintf("%q becomes", s.Lines))
	})
}

func TestJoin_RefusesALockWithMore(t *testing.T) {
	uvLock := &Set{UVLock: &UVLock{}}
	list := &Set{Lines: []string{"a==1"}}
	for name, pair := range map[string][2]*Set{"a lock of uv and a list": {uvLock, list},
		"a list and a lock of uv": {list, uvLock}, "two locks of uv": {uvLock, uvLock}} {
		s, err := pair[0].Join(pair[1])
		test.Error(t, err, test.Sprintf("%s are %+v", name, s))
	}
	hashed := func(name string, complete bool) *Set {
		return &Set{Lines: []string{name + "==1 --hash=sha256:00"}, Hashed: true, Complete: complete}
	}
	for name, c := range map[string]struct {
		one, other *Set
		complete   bool
	}{
		"a lock and nothing":      {hashed("a", true), nil, true},
		"nothing and a lock":      {nil, hashed("a", true), true},
		"a lock and an empty set": {hashed("a", true), &Set{}, true},
		"two locks":               {hashed("a", true), hashed("b", true), true},
		"a lock and a list":       {hashed("a", true), hashed("b", false), false}, // which may need more than is in the lock
		"a list and a lock":       {hashed("a", false), hashed("b", true), false},
		"two lists":               {hashed("a", false), hashed("b", false), false},
	} {
		s, err := c.one.Join(c.other)
		must.NoError(t, err, must.Sprintf("%s: %+v", name, s))
		must.Eq(t, c.complete, s.Complete, must.Sprintf("%s: %+v", name, s))
		test.True(t, s.Hashed, test.Sprintf("%s: %+v", name, s))
	}
}
