package requirement

import (
	"strings"
	"testing"
)

func TestWhatMayBeSecretInAURLIsNotShown(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	for line, want := range map[string]string{
		"index https://user:pa:ss@host/simple":                              "index https://…@host/simple",
		"x @ https://token@host/a@b.whl":                                    "x @ https://…@host/a@b.whl",
		"https://host/a https://u:p@h2/":                                    "https://host/a https://…@h2/",
		"x @ https://host/x.whl?sig=a/b#sha256=HASH ; python_version > '3'": "x @ https://host/x.whl?…#sha256=HASH ; python_version > '3'",
		"x @ https://host/x.whl#egg=x&sha256=HASH":                          "x @ https://host/x.whl#…#sha256=HASH",
		"https://host/x.whl#sha256=HASH":                                    "https://host/x.whl#sha256=HASH",
		"https://host/x.whl#token=b":                                        "https://host/x.whl#…",
		"https://host?sig=a@b https://h2":                                   "https://… https://h2",
		"https://user:pa?ss@host/a https://u@h2/":                           "https://… https://…@h2/",
		"https://user:pass@host?sig=a@b":                                    "https://…",
		"/simple/x/?token=a":                                                "/simple/x/?…",
		"moon-phase==1.2":                                                   "moon-phase==1.2",
		"https://a@b@host":                                                  "https://…@host",
	} {
		line, want = strings.ReplaceAll(line, "HASH", hash), strings.ReplaceAll(want, "HASH", hash)
		if got := Redact(line); got != want {
			t.Errorf("%s: %s", line, got)
		}
	}
}

func TestAnErrorHasNoSecretOfAURL(t *testing.T) {
	for _, line := range []string{
		"x @ http://host/x-1.0-py3-none-any.whl?sig=SECRET", "x @ ftp://host/x.whl?sig=SECRET", "https://host/x?sig=SECRET", "x @ https:/host/x.whl?sig=SECRET",
		"x @ host/x.whl?sig=SECRET", "./x.whl?sig=SECRET", "git+https://host/x?sig=SECRET", "x @ https://host/x.whl;?sig=SECRET;", "x @ https://host/x.whl#token=SECRET y",
	} {
		if _, err := List([]string{line}); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%s: %v", line, err)
		}
	}
}
