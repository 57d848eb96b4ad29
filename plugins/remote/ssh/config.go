// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package ssh runs scripts on hosts with an OpenSSH server. Each has its own connection, which is a process of ssh(1).
package ssh

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os/user"
	"regexp"
	"strconv"
	"time"
)

// Config is a host, and how to log in.
type Config struct {
	Host string
	Port int    // 0 is 22
	User string // empty is the user of this process

	KeyFile     string // file with a private key
	AgentSocket string // socket of an ssh-agent, instead of KeyFile

	HostKeys       []string // public keys in the format of authorized_keys
	KnownHostsFile string   // instead of HostKeys

	// Jump is a host on the way, nil for none. An option that it leaves out is that of the host behind it: the user, the
	// key or agent, and the file of known hosts.
	Jump *Config

	silence time.Duration // without a byte from the host, after which ssh closes the connection
}

// defaultSilence is the time of two keep-alive messages.
const defaultSilence = 20 * time.Second

// complete fills in the defaults.
func (c Config) complete() Config {
	c.Port = cmp.Or(c.Port, 22)
	c.silence = cmp.Or(c.silence, defaultSilence)
	if c.User == "" {
		if u, err := user.Current(); err == nil {
			c.User = u.Username
		}
	}
	if c.Jump == nil {
		return c
	}

	jump := *c.Jump
	jump.User = cmp.Or(jump.User, c.User)
	if jump.KeyFile == "" && jump.AgentSocket == "" {
		jump.KeyFile, jump.AgentSocket = c.KeyFile, c.AgentSocket
	}
	if len(jump.HostKeys) == 0 {
		jump.KnownHostsFile = cmp.Or(jump.KnownHostsFile, c.KnownHostsFile)
	}
	jump = jump.complete()
	c.Jump = &jump
	return c
}

// Check returns what is wrong with the configuration, as far as that shows without reading a file or connecting.
func (c Config) Check() error {
	c = c.complete()
	switch {
	case c.Host == "":
		return errors.New("host is missing")
	case c.User == "":
		return errors.New("the user of this process has no name: set user")
	case (c.KeyFile == "") == (c.AgentSocket == ""):
		return errors.New("set key_file or agent_socket, and not both: the key to log in with")
	case (len(c.HostKeys) == 0) == (c.KnownHostsFile == ""):
		return errors.New("set host_keys or known_hosts_file, and not both: the keys of the host")
	case !hostName.MatchString(c.Host):
		return fmt.Errorf("host %q is neither a name nor an address: it has letters, digits, '.', '_', '-' and ':'", c.Host)
	case !userName.MatchString(c.User):
		return fmt.Errorf("user %q is not the name of a user: it has letters, digits, '.', '_', '-', '+' and '@'", c.User)
	}
	for _, path := range []string{c.KeyFile, c.AgentSocket, c.KnownHostsFile} {
		if path != "" && !safePath.MatchString(path) {
			return fmt.Errorf("%q is not an absolute path of letters, digits, and the characters / . _ - + @ : ,", path)
		}
	}
	for _, key := range c.HostKeys {
		if !publicKey.MatchString(key) {
			return fmt.Errorf("%q in host_keys is not a public key: write \"ssh-ed25519 AAAA…\"", key)
		}
	}
	if c.Jump == nil {
		return nil
	}
	if err := c.Jump.Check(); err != nil {
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
