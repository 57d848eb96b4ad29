// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
)

// ErrRefused is wrapped by the error of a host that refuses the user or the key.
var ErrRefused = errors.New("log-in refused")

// explainDial puts in words why there is no connection to the server.
func (c *Client) explainDial(err error) error {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("there is no host of the name %s: %w", c.config.Host, err)
	case errors.As(err, &dns):
		return fmt.Errorf("the name %s can't be looked up: %w", c.config.Host, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no SSH server listens at %s: %w", c.config.hostPort(), err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s does not answer within %v: %w", c.config.hostPort(), c.config.Timeout, err)
	}
	return fmt.Errorf("%s can't be reached: %w", c.config.hostPort(), err)
}

// explain puts in words why there was no log-in.
func (c *Client) explain(ctx context.Context, err error, keys hostKeys, p proof) error {
	var none *ssh.AlgorithmNegotiationError
	switch {
	case errors.Is(err, ErrHostKey):
		return unwrapTo(err, ErrHostKey)
	case ctx.Err() != nil && c.ctx.Err() == nil:
		return fmt.Errorf("the SSH server at %s did not let %s in within %v: %w", c.config.hostPort(), c.config.User,
			c.config.Timeout, ctx.Err())
	case errors.As(err, &none) && keys.certificates && strings.Contains(err.Error(), "host key"):
		return fmt.Errorf("the SSH server at %s has no host certificate (HostCertificate), and no key that %s has: %w",
			c.config.hostPort(), c.config.KnownHostsFile, ErrHostKey)
	case errors.As(err, &none) && len(keys.algorithms) > 0 && strings.Contains(err.Error(), "host key"):
		return fmt.Errorf("the host key of %s has changed: it has none of %s any more, which the pinned keys are: %w",
			c.config.hostPort(), strings.Join(keys.algorithms, ", "), ErrHostKey)
	case errors.As(err, &none):
		return fmt.Errorf("the SSH server at %s is too old or too strict: %w", c.config.hostPort(), err)
	case strings.Contains(err.Error(), "attempted methods [none],"):
		return fmt.Errorf("the SSH server at %s takes no keys from %s (PubkeyAuthentication): %w", c.config.hostPort(),
			c.config.User, ErrRefused)
	case strings.Contains(strings.ToLower(err.Error()), "too many authentication"):
		return fmt.Errorf("the SSH server at %s refuses user %s: %s offers more keys than it tries (MaxAuthTries), so use "+
			"key_file, or an ssh-agent with one key: %w", c.config.hostPort(), c.config.User, p.from, ErrRefused)
	case strings.Contains(err.Error(), "unable to authenticate"): // the package has no type for any of these
		return fmt.Errorf("the SSH server at %s refuses user %s with the key of %s: there is no such user, or the key is "+
			"not in the user's authorized_keys there: %w", c.config.hostPort(), c.config.User, p.from, ErrRefused)
	}
	return fmt.Errorf("the SSH server at %s ended the log-in of %s: %w", c.config.hostPort(), c.config.User, err)
}

// unwrapTo is the innermost error that wraps a target by its own words.
func unwrapTo(err, target error) error {
	for {
		inner := errors.Unwrap(err)
		//nolint:errorlint // the one itself ends the walk
		if inner == nil || inner == target || !errors.Is(inner, target) {
			return err
		}
		err = inner
	}
}

// explainChannel puts in words why the server opened no channel to an address. OpenSSH does not tell a socket that it
// may not connect to from one that it could not.
func (c *Client) explainChannel(err error, address, option string) error {
	var refused *ssh.OpenChannelError
	switch {
	case errors.As(err, &refused) && refused.Reason == ssh.Prohibited:
		return fmt.Errorf("the SSH server at %s does not allow a connection to %s (%s): %w", c.config.hostPort(), address,
			option, err)
	case errors.As(err, &refused):
		return fmt.Errorf("nothing listens at %s on %s, %s may not connect to it, or the server does not allow it (%s): %w",
			address, c.config.Host, c.config.User, option, err)
	}
	return fmt.Errorf("the connection to %s was lost: %w", c, err)
}
