// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package index

import (
	"net/url"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestRedact_HidesSecretsOfURLs(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	for line, want := range map[string]string{
		"index https://user:pa:ss@host/simple":                       "index https://…@host/simple",
		"x @ https://token@host/a@b.whl":                             "x @ https://…@host/a@b.whl",
		"https://host/a https://u:p@h2/":                             "https://host/a https://…@h2/",
		"x @ https://host/x.whl?sig=a/b#sha256=HASH ; os_name > '3'": "x @ https://host/x.whl?…#sha256=HASH ; os_name > '3'",
		"x @ https://host/x.whl#egg=x&sha256=HASH":                   "x @ https://host/x.whl#…#sha256=HASH",
		"https://host/x.whl#sha256=HASH":                             "https://host/x.whl#sha256=HASH",
		"https://host/x.whl#token=b":                                 "https://host/x.whl#…",
		"https://host?sig=a@b https://h2":                            "https://… https://h2",
		"https://user:pa?ss@host/a https://u@h2/":                    "https://… https://…@h2/",
		"https://user:pass@host?sig=a@b":                             "https://…",
		"/simple/x/?token=a":                                         "/simple/x/?…",
		"moon-phase==1.2":                                            "moon-phase==1.2",
		"https://a@b@host":                                           "https://…@host",
	} {
		line, want = strings.ReplaceAll(line, "HASH", hash), strings.ReplaceAll(want, "HASH", hash)
		test.Eq(t, want, Redact(line), test.Sprint(line))
	}
}

func TestAccess_RedactsAToolsOutput(t *testing.T) {
	u, err := url.Parse("https://user:hunt%25er2@host/simple?token=SECRET")
	must.NoError(t, err)
	var a Access
	a.Add(u)
	for line, want := range map[string]string{
		"From https://user:other@host/simple, https://token@host":         "From https://…@host/simple, https://…@host",
		"(from 'https://host/x.whl?sig=a@b') is wrong?":                   "(from 'https://host/x.whl?…') is wrong?",
		"For `git+ssh://git:pass@host?sig=a@b`, /simple/x/?key=a (again)": "For `git+ssh://…`, /simple/x/?… (again)",
		"password hunt%er2 or hunt%25er2, and token=SECRET":               "password **** or ****, and ****",
		"What? #1 me@host": "What? #1 me@host",
	} {
		test.Eq(t, want, a.Redact(line), test.Sprint(line))
	}
}
