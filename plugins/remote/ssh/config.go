// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package ssh runs scripts on hosts with an OpenSSH server. Each has its own connection, which is a process of ssh(1).
package ssh

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
)

// Config is a host, and how to log in.
type Config struct {
	Hop

	KeyFile     string `codec:"key_file" doc:"File with a private key without a passphrase, absolute. Only its owner may be able to read it."`
	AgentSocket string `codec:"agent_socket" doc:"Socket of an ssh-agent that has the key, absolute; instead of key_file."`

	Jump *Hop `codec:"jump" doc:"A host on the way, as with ssh -J. The login there is with the same key."`
}

// Hop is an SSH server.
type Hop struct {
	Host     string   `codec:"host" required:"true" doc:"Name or address of the host."`
	Port     int      `codec:"port" default:"22" min:"1" max:"65535" doc:"Port of its SSH server."`
	User     string   `codec:"user" required:"true" doc:"The user there; it need not be root."`
	HostKeys []string `codec:"host_keys" doc:"The host's public keys, as ssh-keyscan prints them, without the name: \"ssh-ed25519 AAAA…\". Any other key is refused."`
}

// way is the jump host, nil if there is none.
func (c Config) way() *Config {
	if c.Jump == nil {
		return nil
	}
	return &Config{Hop: *c.Jump, KeyFile: c.KeyFile, AgentSocket: c.AgentSocket}
}

// Check returns what is wrong with the configuration, as far as that shows without reading a file or connecting.
func (c Config) Check() error {
	switch {
	case (c.KeyFile == "") == (c.AgentSocket == ""):
		return errors.New("set key_file or agent_socket, and not both: the key to log in with")
	case len(c.HostKeys) == 0:
		return errors.New("set host_keys: the keys of the host")
	case !hostName.MatchString(c.Host):
		return fmt.Errorf("host %q is neither a name nor an address: it has letters, digits, '.', '_', '-' and ':'", c.Host)
	case !userName.MatchString(c.User):
		return fmt.Errorf("user %q is not the name of a user: it has letters, digits, '.', '_', '-', '+' and '@'", c.User)
	}
	for _, path := range []string{c.KeyFile, c.AgentSocket} {
		if path != "" && !safePath.MatchString(path) {
			return fmt.Errorf("%q is not an absolute path of letters, digits, and the characters / . _ - + @ : ,", path)
		}
	}
	for _, key := range c.HostKeys {
		if !publicKey.MatchString(key) {
			return fmt.Errorf("%q in host_keys is not a public key: write \"ssh-ed25519 AAAA…\"", key)
		}
	}
	way := c.way()
	if way == nil {
		return nil
	}
	if err := way.Check(); err != nil {
		return fmt.Errorf("jump: %w", err)
	}
	return nil
}

// What each version of ssh, and a shell, reads as one word, and not as an option, a pattern or a variable.
var (
	hostName = regexp.MustCompile(`^[A-Za-z0-9_:][A-Za-z0-9._:-]*$`)
	userName = regexp.MustCompile(`^[A-Za-z0-9._+@][A-Za-z0-9._+@-]*$`)
	safePath = regexp.MustCompile(`^/[A-Za-z0-9/._+@:,-]*$`)

	publicKey = regexp.MustCompile(`^[a-z0-9@.-]+[ \t]+AAAA[A-Za-z0-9+/]+=*([ \t].*)?\s*$`) // with a comment
)

// String is user@host:port.
func (c Config) String() string {
	return c.User + "@" + c.address()
}

func (c Config) address() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.Port)) }
