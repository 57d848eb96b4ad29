// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
)

// ErrRefused is wrapped by the error of Dial if the host refuses the user or the key.
var ErrRefused = errors.New("log-in refused")

// explainDial explains why there is no connection to the server.
func (c Config) explainDial(err error) error {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("no host has the name %s: %w", c.Host, err)
	case errors.As(err, &dns):
		return fmt.Errorf("failed to look up the name %s: %w", c.Host, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no SSH server listens at %s: %w", c.address(), err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s did not answer in time: %w", c.address(), err)
	}
	return fmt.Errorf("failed to reach %s: %w", c.address(), err)
}

// explainForward explains why the jump host does not connect to the server.
func (c Config) explainForward(ctx context.Context, err error) error {
	var refused *ssh.OpenChannelError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not answer the jump host in time: %w", c.address(), ctx.Err())
	case errors.As(err, &refused) && refused.Reason == ssh.Prohibited:
		return fmt.Errorf("the jump host %s does not allow connections to %s (AllowTcpForwarding): %w", c.Jump, c.address(),
			err)
	}
	return fmt.Errorf("the jump host %s failed to connect to %s: %w", c.Jump, c.address(), err)
}

// explainLogin explains why the log-in failed. Package ssh has no types for most of these errors.
func (c Config) explainLogin(ctx context.Context, err error, keys hostKeys, login login) error {
	var none *ssh.AlgorithmNegotiationError
	isHostKey := errors.As(err, &none) && strings.Contains(err.Error(), "host key")
	text := strings.ToLower(err.Error())
	server := "the SSH server at " + c.address()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not complete the log-in of %s in time: %w", server, c.User, ctx.Err())
	case isHostKey && len(keys.algorithms) > 0:
		return fmt.Errorf("the host key of %s has changed: the host has no %s key any more, which the known keys are: %w",
			c.address(), strings.Join(keys.algorithms, " or "), ErrHostKey)
	case none != nil:
		return fmt.Errorf("%s and this program have no algorithm in common: %w", server, err)
	case strings.Contains(text, "attempted methods [none],"):
		return fmt.Errorf("%s takes no keys from %s (PubkeyAuthentication): %w", server, c.User, ErrRefused)
	case strings.Contains(text, "too many authentication"):
		return fmt.Errorf("%s refuses user %s: %s has more keys than the server tries (MaxAuthTries), so use key_file, or "+
			"an ssh-agent with one key: %w", server, c.User, login.source, ErrRefused)
	case strings.Contains(text, "unable to authenticate"):
		return fmt.Errorf("%s refuses user %s with the key of %s: there is no such user, or its authorized_keys lacks the "+
			"key: %w", server, c.User, login.source, ErrRefused)
	}
	return fmt.Errorf("%s ended the log-in of %s: %w", server, c.User, err)
}

// explainNoShell explains why a script did not begin.
func (c *Conn) explainNoShell(err error, output []byte) error {
	end := "exit status 0"
	if err != nil {
		end = err.Error()
	}
	return fmt.Errorf("%s runs no commands: its login shell or a forced command wrote %q (%s)", c.config,
		lastLine(output), end)
}

// explainExit returns an ExitError for an error of ssh.Session.
func explainExit(err error, stderr *tail) error {
	e := &ExitError{Status: -1, Reason: "the host did not report how it ended"}
	var exit *ssh.ExitError
	var missing *ssh.ExitMissingError
	switch {
	case errors.As(err, &exit) && exit.Signal() != "":
		e.Reason = "it was killed by SIG" + exit.Signal()
	case errors.As(err, &exit):
		e.Status, e.Reason = exit.ExitStatus(), fmt.Sprintf("it ended with status %d", exit.ExitStatus())
	case !errors.As(err, &missing):
		e.Reason = err.Error()
	}
	if last := lastLine([]byte(stderr.String())); last != "" {
		e.Reason += ": " + last
	}
	return e
}

// lastLine returns the last line of a text, shortened.
func lastLine(text []byte) string {
	text = bytes.TrimSpace(text)
	text = text[bytes.LastIndexByte(text, '\n')+1:]
	return strings.ToValidUTF8(string(text[max(0, len(text)-300):]), "?")
}
