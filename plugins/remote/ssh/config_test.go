// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"testing"

	"github.com/shoenig/test"
)

func TestCheck_ErrorsAreOneSentence(t *testing.T) {
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
	keyFile := func(path string) func(*Config) { return func(c *Config) { c.KeyFile = path } }
	agent := func(path string) func(*Config) {
		return func(c *Config) { c.KeyFile, c.AgentSocket = "", path }
	}
	host := func(name string) func(*Config) { return func(c *Config) { c.Host = name } }
	user := func(name string) func(*Config) { return func(c *Config) { c.User = name } }
	const (
		noHost = "is neither a name nor an address"
		noUser = "is not the name of a user"
		noPath = "is not valid: use an absolute path of letters"
	)
	for name, c := range map[string]struct {
		edit func(*Config)
		want string // part of the error; empty: no error
	}{
		"correct":         {func(*Config) {}, ""},
		"correct agent":   {agent("/run/user/0/a,g:e_n@t+1-2.3"), ""},
		"correct address": {host("fe80::1"), ""},
		"correct user":    {user("some.one-2@example.org"), ""},
		"correct jump":    {func(c *Config) { c.Jump = &Hop{Host: "way", User: "u", HostKeys: []string{key}} }, ""},

		"no host":     {host(""), noHost},
		"no key":      {func(c *Config) { c.KeyFile = "" }, "set either key_file or agent_socket"},
		"two keys":    {func(c *Config) { c.AgentSocket = "/agent" }, "set either key_file or agent_socket"},
		"no host key": {func(c *Config) { c.HostKeys = nil }, "set host_keys to the public keys of the host"},
		"bad host key": {func(c *Config) { c.HostKeys = []string{"key"} },
			`"key" in host_keys is not a public key: use the form "ssh-ed25519 AAAA…"`},
		"two lines in a host key": {func(c *Config) { c.HostKeys = []string{key + "\n* " + key} },
			" in host_keys is not a public key"},
		"relative key":    {func(c *Config) { c.KeyFile = "key" }, `"key" ` + noPath},
		"relative agent":  {agent("a"), `"a" ` + noPath},
		"none as a key":   {func(c *Config) { c.KeyFile = "none" }, noPath},
		"space in a path": {keyFile("/a b"), noPath},
		"token in a path": {agent("/a%d"), noPath},
		"variable":        {func(c *Config) { c.KeyFile = "/${HOME}" }, noPath},
		"line":            {keyFile("/a\nb"), noPath},
		"quote":           {keyFile(`/a"b`), noPath},
		"assignment":      {keyFile("/a=b"), noPath},
		"home":            {keyFile("~/known"), noPath},
		"option as host":  {host("-oProxyCommand=x"), noHost},
		"user in host":    {host("u@h"), noHost},
		"token in host":   {host("h%d"), noHost},
		"space in host":   {host("a b"), noHost},
		"no user":         {user(""), noUser},
		"option as user":  {user("-oProxyCommand=x"), noUser},
		"quote in user":   {user("it's"), noUser},
		"line in user":    {user("a\n"), noUser},
		"option as jump": {func(c *Config) { c.Jump = &Hop{Host: "-J", User: "u", HostKeys: []string{key}} },
			"jump: host \"-J\" " + noHost},
		"jump without a host key": {func(c *Config) { c.Jump = &Hop{Host: "way", User: "u"} },
			"jump: set host_keys"},
	} {
		config := Config{Hop: Hop{Host: "gpu1", User: "u", HostKeys: []string{key}}, KeyFile: "/key"}
		c.edit(&config)
		err := config.Check()
		if c.want == "" {
			test.NoError(t, err, test.Sprint(name))
			continue
		}
		test.ErrorContains(t, err, c.want, test.Sprint(name))
	}
}
