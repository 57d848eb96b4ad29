// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package ssh connects to hosts with an OpenSSH server. Everything that a program does on a host shares one connection.
// It is made at its first use, and again after it was lost.
package ssh

import (
	"cmp"
	"fmt"
	"net"
	"os/user"
	"strconv"
	"time"
)

// Config is a host, and how to log in.
type Config struct {
	Host string
	Port int    // 0 is 22
	User string // empty is this process's

	KeyFile     string // with a private key
	AgentSocket string // of an ssh-agent, instead

	HostKeys       []string // in the form of authorized_keys
	KnownHostsFile string   // instead

	// Jump is a host on the way, nil for none. An option that it leaves out is that of the host behind it: the user, the
	// key, and the file of known hosts.
	Jump *Config

	// Timeout bounds each attempt to connect and log in, 15 s by default.
	Timeout time.Duration

	// Silence is how long the host may send nothing until its connection is closed, 15 s by default. It is asked for an
	// answer all the while.
	Silence time.Duration
}

// complete fills in what is left out.
func (c Config) complete() (Config, error) {
	c.Port = cmp.Or(c.Port, 22)
	c.Timeout = cmp.Or(c.Timeout, 15*time.Second)
	c.Silence = cmp.Or(c.Silence, 15*time.Second)
	if c.User == "" {
		u, err := user.Current()
		if err != nil {
			return c, fmt.Errorf("who to log in as is not known: set user (%w)", err)
		}
		c.User = u.Username
	}
	if c.Jump != nil {
		jump := *c.Jump
		jump.User = cmp.Or(jump.User, c.User)
		jump.Timeout, jump.Silence = cmp.Or(jump.Timeout, c.Timeout), cmp.Or(jump.Silence, c.Silence)
		if jump.KeyFile == "" && jump.AgentSocket == "" {
			jump.KeyFile, jump.AgentSocket = c.KeyFile, c.AgentSocket
		}
		if len(jump.HostKeys) == 0 {
			jump.KnownHostsFile = cmp.Or(jump.KnownHostsFile, c.KnownHostsFile)
		}
		c.Jump = &jump
	}
	return c, nil
}

// hostPort is the server's address.
func (c Config) hostPort() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.Port)) }
