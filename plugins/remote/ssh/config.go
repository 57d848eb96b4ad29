// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package ssh connects to hosts with an OpenSSH server and runs programs there. A Conn is one connection. It does not
// reconnect: its owner dials again.
package ssh

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os/user"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/crypto/ssh"
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

	silence time.Duration // without a byte from the host, after which the connection is closed
}

// defaultSilence is the time of two keep-alive requests.
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
	case c.KeyFile == "" && c.AgentSocket == "":
		return errors.New("no key to log in with: set key_file or agent_socket")
	case c.KeyFile != "" && c.AgentSocket != "":
		return errors.New("key_file and agent_socket exclude each other: remove one")
	case len(c.HostKeys) == 0 && c.KnownHostsFile == "":
		return errors.New("no key of the host: set host_keys or known_hosts_file")
	case len(c.HostKeys) > 0 && c.KnownHostsFile != "":
		return errors.New("host_keys and known_hosts_file exclude each other: remove one")
	}
	for _, path := range []string{c.KeyFile, c.AgentSocket, c.KnownHostsFile} {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%q is not an absolute path", path)
		}
	}
	if _, err := parseHostKeys(c.HostKeys); err != nil {
		return err
	}
	if c.Jump == nil {
		return nil
	}
	if err := c.Jump.Check(); err != nil {
		return fmt.Errorf("jump: %w", err)
	}
	return nil
}

func parseHostKeys(lines []string) ([]ssh.PublicKey, error) {
	var keys []ssh.PublicKey
	for _, line := range lines {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err != nil {
			return nil, fmt.Errorf("%q in host_keys is not a public key: write \"ssh-ed25519 AAAA…\"", line)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// address is the address of the server.
func (c Config) address() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.Port)) }

// String is user@host:port.
func (c Config) String() string { return c.User + "@" + c.address() }
