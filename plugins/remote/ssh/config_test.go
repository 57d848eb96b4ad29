// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestCheck_MistakeIsOneSentence(t *testing.T) {
	_, key := newKey(t)
	for name, c := range map[string]struct {
		edit func(*Config)
		want string
	}{
		"correct":       {func(*Config) {}, ""},
		"correct agent": {func(c *Config) { c.KeyFile, c.AgentSocket = "", "/agent" }, ""},
		"correct jump":  {func(c *Config) { c.Jump = &Config{Host: "way", HostKeys: []string{line(key)}} }, ""},
		"correct jump with the same file": {func(c *Config) {
			c.HostKeys, c.KnownHostsFile, c.Jump = nil, "/known", &Config{Host: "way"}
		}, ""},
		"no host": {func(c *Config) { c.Host = "" }, "host is missing"},
		"no key":  {func(c *Config) { c.KeyFile = "" }, "no key to log in with: set key_file or agent_socket"},
		"two keys": {func(c *Config) { c.AgentSocket = "/agent" },
			"key_file and agent_socket exclude each other: remove one"},
		"no host key": {func(c *Config) { c.HostKeys = nil }, "no key of the host: set host_keys or known_hosts_file"},
		"two host keys": {func(c *Config) { c.KnownHostsFile = "/k" },
			"host_keys and known_hosts_file exclude each other: remove one"},
		"bad host key":   {func(c *Config) { c.HostKeys[0] = "key" }, `"key" in host_keys is not a public key: write "ssh-ed25519 AAAA…"`},
		"relative key":   {func(c *Config) { c.KeyFile = "key" }, `"key" is not an absolute path`},
		"relative agent": {func(c *Config) { c.KeyFile, c.AgentSocket = "", "a" }, `"a" is not an absolute path`},
		"relative hosts": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, "k" }, `"k" is not an absolute path`},
		"jump without a host key": {func(c *Config) { c.Jump = &Config{Host: "way"} },
			"jump: no key of the host: set host_keys or known_hosts_file"},
	} {
		config := Config{Host: "gpu1", KeyFile: "/key", HostKeys: []string{line(key)}}
		c.edit(&config)
		err := config.Check()
		if c.want == "" {
			test.NoError(t, err, test.Sprint(name))
			continue
		}
		test.EqError(t, err, c.want, test.Sprint(name))
	}
}

func TestComplete_JumpHostInheritsWhatItLeavesOut(t *testing.T) {
	c := Config{Host: "gpu1", User: "u", KeyFile: "/key", KnownHostsFile: "/known", Jump: &Config{Host: "way"}}
	jump := c.complete().Jump
	must.Eq(t, "u@way:22", jump.String())
	must.Eq(t, "/key", jump.KeyFile)
	must.Eq(t, "/known", jump.KnownHostsFile)
	must.Eq(t, Config{Host: "way"}, *c.Jump) // unchanged

	c.Jump = &Config{Host: "way", User: "v", AgentSocket: "/agent", HostKeys: []string{"key"}}
	jump = c.complete().Jump
	must.Eq(t, "v@way:22", jump.String())
	must.Eq(t, "", jump.KeyFile)
	must.Eq(t, "", jump.KnownHostsFile)
}
