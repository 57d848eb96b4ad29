// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package index

import (
	"runtime"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestNetrc_AddsCredentialsToTheirHosts(t *testing.T) {
	logins, err := ParseNetrc(`# of the team
machine packages.example.com login build password hunter2 # since May
machine QUOTED.example.com
	login "team build"
	password "a\"b #c"
macdef init
machine macro.example.com login x password y

machine packages.example.com login later password later
machine token.example.com password "" account z
machine half.example.com login nobody
machine hash.example.com login a password #b
default login any password any`)
	must.NoError(t, err)
	for from, want := range map[string]string{
		"https://packages.example.com/simple":       "https://build:hunter2@packages.example.com/simple",
		"http://Packages.example.com:8080/simple?a": "http://build:hunter2@Packages.example.com:8080/simple?a",
		"https://me@packages.example.com/simple":    "https://me@packages.example.com/simple",
		"https://quoted.example.com/":               "https://team%20build:a%22b%20%23c@quoted.example.com/",
		"https://macro.example.com/":                "https://macro.example.com/",
		"https://token.example.com/":                "https://:@token.example.com/",
		"https://half.example.com/":                 "https://half.example.com/",
		"https://hash.example.com/":                 "https://a:%23b@hash.example.com/",
		"https://other.example.com/":                "https://other.example.com/",
		"/srv/packages.example.com":                 "/srv/packages.example.com",
	} {
		test.Eq(t, want, logins.login(from), test.Sprint(from))
	}
	for _, empty := range []string{
		"", "password x", "macdef", "# machine a login b password c", "default login b password c",
	} {
		got, err := ParseNetrc(empty)
		must.MapEmpty(t, got, must.Sprint(empty))
		test.NoError(t, err, test.Sprint(empty))
	}
}

func TestParseNetrc_RefusesWhatCouldMeanAnotherHost(t *testing.T) {
	const b = "\nmachine b login y password z\n"
	for broken, says := range map[string]string{
		"machine a login x password " + b:                       "line 1 has no value for password",
		"machine a login x\n  password" + b:                     "line 2 has no value for password",
		"machine a login  password p3" + b:                      "line 1 has a word where",
		"machine  login x password p3" + b:                      "line 1 has a word where",
		"machine a\n# machine c\n login x\n login p3" + b:       "line 4 has a second login",
		"machine a login x password p3\n#machine b\npassword z": "line 3 has a second password",
		"machine a login x password p3 secret" + b:              "line 1 has a word where",
		"machine a login x password \"p3" + b:                   "line 1 has no value for password",
		"machine":                                               "line 1 has no value for machine",
		"\x00":                                                  "line 1 has a word where",
	} {
		got, err := ParseNetrc(broken)
		if len(got) != 0 || err == nil || !strings.HasPrefix(err.Error(), says) {
			t.Errorf("%q: %v, %v", broken, got, err)
		} else if strings.Contains(err.Error(), "p3") || strings.Contains(err.Error(), "secret") {
			t.Errorf("what is in the file is in the error: %v", err)
		}
	}
}

func TestParseNetrc_IsLinearInALine(t *testing.T) {
	line := strings.Repeat("machine a ", MaxNetrc/10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := ParseNetrc(line)
	runtime.ReadMemStats(&after)
	took := after.TotalAlloc - before.TotalAlloc
	must.NoError(t, err, must.Sprintf("%d KiB take %d KiB", len(line)>>10, took>>10))
	test.False(t, took > 8<<20, test.Sprintf("%d KiB take %d KiB", len(line)>>10, took>>10))
}
