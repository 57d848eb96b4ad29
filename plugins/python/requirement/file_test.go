// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func hashOf(c string) string { return "sha256:" + strings.Repeat(c, 64) }

// in returns a Reader of these files.
func in(files map[string]string) Reader {
	return func(name string) ([]byte, error) {
		content, ok := files[name]
		if !ok {
			return nil, fmt.Errorf("%q: %w", name, fs.ErrNotExist)
		}
		return []byte(content), nil
	}
}

func TestFile_ReadsRequirementsLikePip(t *testing.T) {
	got, err := File("local/requirements.txt", in(map[string]string{
		"local/requirements.txt": "\ufeff# what is needed\r\n" +
			"Flask[async] >= 2, \\\n   < 4  # for the page\r\n" +
			"\n" +
			"-r more/base.txt\n" +
			"-cmore/constraints.txt\n" +
			"--index-url https://host/simple\n--extra-index-url=https://other/simple\n" +
			"-f wheels\n--find-links \"my wheels\"\n-f /srv/wheels\n-f https://host/page.html#x\n" +
			"--only-binary :all:\n--prefer-binary\n" +
			"torch==2.1.0+cpu ; sys_platform == 'win32' or platform_machine == \"x/y\"\n" +
			"pkg @ https://host/pkg-1-py3-none-any.whl#egg=pkg\n" +
			"last \\",
		"local/more/base.txt":        "base\n  # \\\n--requirement ../other.txt\n-f .\n",
		"local/other.txt":            "other\nbase\n--no-index",
		"local/more/constraints.txt": "Limit <= 3\n-c limits.txt\n",
		"local/more/limits.txt":      "limit>1 --hash=" + hashOf("d"),
	}))
	must.NoError(t, err)
	want := &Set{
		Lines: []string{
			"Flask[async] >= 2, < 4", "base", "other", "base",
			"torch==2.1.0+cpu ; sys_platform == 'win32' or platform_machine == \"x/y\"",
			"pkg @ https://host/pkg-1-py3-none-any.whl#egg=pkg", "last",
		},
		Constraints: []string{"Limit <= 3", "limit>1 --hash=" + hashOf("d")},
		Names:       true,
		Hashed:      true,
		Indexes: Sources{
			URL: "https://host/simple", Extra: []string{"https://other/simple"}, Offline: true,
			FindLinks: []string{"local/more", "local/wheels", "local/my wheels", "/srv/wheels", "https://host/page.html#x"},
		},
	}
	test.Eq(t, want, got, test.Sprintf("got\n%+v\nnot", got))
}

func TestLock_RefusesLocksOfOtherTools(t *testing.T) {
	for name, says := range map[string]string{
		"poetry.lock": "lock with uv", "Pipfile.lock": "lock with uv", "lock.toml": "lock with uv",
	} {
		_, err := Choice{}.Lock(name, in(nil))
		test.ErrorContains(t, err, says, test.Sprint(name))
	}
	_, err := Choice{Extras: []string{"x"}}.Lock("l.txt", in(nil))
	test.ErrorContains(t, err, "does not support extras")
}

func TestFile_NamesTheLineInErrors(t *testing.T) {
	for text, says := range map[string]string{
		"-e .":                                   "source code",
		"--trusted-host host":                    "operator",
		"--no-binary :all:":                      "not supported",
		"-r https://host/r.txt":                  "artifact",
		"-r":                                     "needs a file name",
		"-r missing.txt":                         "file does not exist",
		"-r self.txt":                            "includes itself",
		"-i host/simple":                         "https://",
		"-i":                                     "empty",
		"-i https://a --no-index":                "characters",
		"--extra-index-url file:///x":            "https://",
		"--index-url https://${USER}@h":          "template",
		"pkg==$\\\n{VERSION}":                    "template",
		"a\x0cb":                                 "control",
		"./x":                                    "build a wheel",
		"/srv/x-1-py3-none-any.whl":              "build a wheel",
		"x-1-py3-none-any.whl":                   "build a wheel",
		`dir\x ; os_name == "nt"`:                "build a wheel",
		"numpy @ file:///home/conda/numpy":       "build a wheel",
		"x @ git+https://host/x":                 "build a wheel",
		"x @ https://host/x.tar.gz":              "not the URL of a wheel",
		"x @ https://u:p@host/x-1.whl":           "secrets/.netrc",
		"a==1 --hash=md5:1234":                   "complete",
		"a==1 --hash=sha256:12":                  "complete",
		"-r loop/a.txt":                          "includes itself",
		"-r deep/0.txt":                          "not exist",
		strings.Repeat("a\\\n", 1_000_000) + "/": "not a package requirement",
		strings.Repeat("-r one.txt\n", 60):       "more than 50 files",
		"\xff\xfer\x00e\x00":                     "UTF-8",
	} {
		files := map[string]string{
			"self.txt": "first\n" + text, "one.txt": "one", "two.txt": "-r one.txt",
			"loop/a.txt": "-r b.txt", "loop/b.txt": "-r ./a.txt",
		}
		for i := range 30 {
			files[fmt.Sprintf("deep/%d.txt", i)] = fmt.Sprintf("-r %d.txt", i+1)
		}
		s, err := File("self.txt", in(files))
		if err == nil {
			t.Errorf("%.50q is accepted: %q", text, s.Lines)
		} else if m := err.Error(); !strings.HasPrefix(m, "self.txt") || !strings.Contains(m, says) || strings.Contains(m,
			"\n") || len(m) > 2600 {
			t.Errorf("%.50q: %v, without %q", text, err, says)
		}
	}
}

func TestList_RefusesOptionsAndLineBreaks(t *testing.T) {
	for text, says := range map[string]string{
		"": "empty", "# a": "not a package requirement", "-e .": "option", "a\nb": "control",
	} {
		_, err := List([]string{"first", text})
		test.ErrorContains(t, err, says, test.Sprintf("%q", text))
		test.ErrorContains(t, err, "requirement 2", test.Sprintf("%q", text))
	}
}
