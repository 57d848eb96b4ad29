package main

import (
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	for line, want := range map[string]string{
		"index https://user:pa:ss@host/simple": "index https://…@host/simple",
		"x @ https://token@host/a@b.whl":       "x @ https://…@host/a@b.whl",
		"https://host/a https://u:p@h2/":       "https://host/a https://…@h2/",
		"moon-phase==1.2":                      "moon-phase==1.2",
		"https://a@b@host":                     "https://…@host",
	} {
		if got := redact(line); got != want {
			t.Errorf("%s: %s", line, got)
		}
	}
}

func TestRoundUp(t *testing.T) {
	for n, want := range map[int64]int64{-1: 0, 0: 0, 1: 1, 2: 2, 3: 4, 1000: 1024, 1024: 1024, 1025: 2048} {
		if got := roundUp(n); got != want {
			t.Errorf("%d: %d", n, got)
		}
	}
}

func TestFileNamesAreToldFromRequirements(t *testing.T) {
	for text, want := range map[string]bool{
		"requirements.txt": true, "local/reqs": true, "dev.in": true, "/abs/file": true,
		"requests": false, "requests[socks]>=2": false, "x @ https://host/x.whl": false, "zope.interface": false,
	} {
		if isFileName(text) != want {
			t.Errorf("%q", text)
		}
	}
}

func TestWrongPluginConfigurationsAreSentences(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"interpreters has":      func(c *Config) { c.Interpreters = []string{"python3"} },
		"is not a pattern":      func(c *Config) { c.Interpreters = []string{"/opt/[x"} },
		"uv \"uv\" is not":      func(c *Config) { c.UV = "uv" },
		"begins with \"token\"": func(c *Config) { c.IndexURL = "token:secret@host" },
		"find_links has":        func(c *Config) { c.FindLinks = []string{"wheels"} },
		"cache_dir":             func(c *Config) { c.CacheDir = "cache" },
	} {
		var c Config
		c.IndexURL, c.BuildUser = "https://pypi.org/simple", "79999"
		change(&c)
		err := newDriver().configure(c)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", want, err)
		}
	}
}
