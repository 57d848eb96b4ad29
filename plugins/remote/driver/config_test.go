// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/ssh"
)

func TestConfig_ErrorsAreOneSentence(t *testing.T) {
	good := ssh.Config{
		Hop: ssh.Hop{Host: "gpu1", Port: 22, User: "u", HostKeys: []string{"ssh-ed25519 AAAAB"}}, KeyFile: "/k",
	}
	with := func(change func(*ssh.Config)) map[string]Endpoint {
		s := good
		change(&s)
		return map[string]Endpoint{"a": {SSH: &s}}
	}
	for name, c := range map[string]struct {
		endpoints map[string]Endpoint
		programs  map[string]string
		why       string
	}{
		"none at all":        {},
		"a good one":         {endpoints: map[string]Endpoint{"gpu1": {SSH: &good}}},
		"no ssh block":       {endpoints: map[string]Endpoint{"gpu1": {}}, why: `endpoint "gpu1" has no ssh block`},
		"a bad name":         {endpoints: map[string]Endpoint{"gpu.1": {SSH: &good}}, why: `"gpu.1": use letters`},
		"a relative dir":     {endpoints: map[string]Endpoint{"a": {SSH: &good, Dir: "x"}}, why: `dir "x" is not absolute`},
		"a relative program": {programs: map[string]string{"arm64": "x"}, why: `the path of arm64, "x", is not absolute`},
		"no key to log in":   {endpoints: with(func(s *ssh.Config) { s.KeyFile = "" }), why: "key_file"},
		"no host key":        {endpoints: with(func(s *ssh.Config) { s.HostKeys = nil }), why: "host_keys"},
		"an invalid host key": {
			endpoints: with(func(s *ssh.Config) { s.HostKeys = []string{"no"} }), why: "host_keys",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := (&Config{Endpoints: c.endpoints, Programs: c.programs}).Validate()
			if c.why == "" {
				must.NoError(t, err)
				return
			}
			must.ErrorContains(t, err, c.why)
		})
	}
}
