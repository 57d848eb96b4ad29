// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/outrider-dev/outrider/plugins/remote/docker"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
	"github.com/outrider-dev/outrider/plugins/remote/sshhost"
	"github.com/outrider-dev/outrider/plugins/remote/upload"
)

// Open returns an endpoint that is not connected yet: its first call connects. The caller closes it.
func Open(e Endpoint, lease time.Duration) (endpoint.Endpoint, error) {
	if e.SSH != nil {
		return e.SSH.open(e.Reached(), lease)
	}
	return e.Docker.open(lease)
}

func (s *SSH) open(address string, lease time.Duration) (endpoint.Endpoint, error) {
	client, err := ssh.New(s.Keys.login(s.Host, s.Port, s.User, s.Jump))
	if err != nil {
		return nil, err
	}
	host := sshhost.New(sshhost.Config{Dial: upload.New(client, s.StateDir).Dial, Lease: lease, Address: address})
	return &tunnelled{host, client}, nil
}

func (d *Docker) open(lease time.Duration) (endpoint.Endpoint, error) {
	o := docker.Options{Host: d.Host, CAFile: d.CAFile, CertFile: d.CertFile, KeyFile: d.KeyFile, Lease: lease}
	if err := ownKey(d.KeyFile); err != nil {
		return nil, err
	}
	if d.SSH == nil {
		return docker.New(o)
	}
	u, err := url.Parse(d.Host)
	if err != nil {
		return nil, err
	}
	port, _ := strconv.Atoi(u.Port()) // which Validate has seen
	client, err := ssh.New(d.SSH.Keys.login(u.Hostname(), port, u.User.Username(), d.SSH.Jump))
	if err != nil {
		return nil, err
	}
	o.Host, o.Dial = "unix://"+cmp.Or(u.Path, "/var/run/docker.sock"), client.Dial
	engine, err := docker.New(o)
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	return &tunnelled{engine, client}, nil
}

// login is how a client logs in.
func (k Keys) login(host string, port int, user string, jump *Jump) ssh.Config {
	c := ssh.Config{
		Host: host, Port: port, User: user, KeyFile: k.KeyFile, AgentSocket: k.AgentSocket,
		HostKeys: k.HostKeys, KnownHostsFile: k.KnownHostsFile,
	}
	if jump != nil {
		c.Jump = &ssh.Config{
			Host: jump.Host, Port: jump.Port, User: jump.User, KeyFile: jump.KeyFile,
			HostKeys: jump.HostKeys, KnownHostsFile: jump.KnownHostsFile,
		}
	}
	return c
}

// Reached is where others reach the ports of tasks, empty for this machine.
func (e Endpoint) Reached() string {
	switch {
	case e.Address != "":
		return e.Address
	case e.SSH != nil:
		return e.SSH.Host
	}
	u, err := url.Parse(e.Docker.Host)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// tunnelled is an endpoint with the connection that it is reached by.
type tunnelled struct {
	endpoint.Endpoint
	by io.Closer
}

func (t *tunnelled) Close() error { return errors.Join(t.Endpoint.Close(), t.by.Close()) }

// ownKey returns an error if others can read a file with a private key.
func ownKey(path string) error {
	if path == "" {
		return nil
	}
	st, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("key_file: %w", err)
	}
	if mode := st.Mode().Perm(); mode&0o077 != 0 {
		return fmt.Errorf("key_file %s has mode %#o: others may read it, 0600 is right", path, mode)
	}
	return nil
}
