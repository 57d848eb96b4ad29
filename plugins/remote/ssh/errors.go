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

	"github.com/outrider-dev/outrider/internal/core/plain"
)

// explainDial explains why there is no connection to the server.
func (c Config) explainDial(err error) error {
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &dns):
		return fmt.Errorf("failed to look up the name %s: %w", c.Host, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no SSH server listens at %s: %w", c.address(), err)
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%s did not answer in time: %w", c.address(), err)
	}
	return fmt.Errorf("failed to reach %s: %w", c.address(), err)
}

// explainLogin explains why the log-in failed. Package ssh has no types for most of these errors.
func (c Config) explainLogin(ctx context.Context, err error, source string) error {
	text := strings.ToLower(err.Error())
	server := "the SSH server at " + c.address()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not complete the log-in of %s in time: %w", server, c.User, ctx.Err())
	case strings.Contains(text, "no common algorithm for host key"):
		return fmt.Errorf("the host key of %s has changed, or the known keys are of other kinds: %w", c.address(), err)
	case strings.Contains(text, "unable to authenticate"), strings.Contains(text, "too many authentication"):
		return fmt.Errorf("%s refuses user %s with the key of %s: there is no such user, or its authorized_keys lacks the "+
			"key", server, c.User, source)
	}
	return fmt.Errorf("%s ended the log-in of %s: %w", server, c.User, err)
}

// lastLine returns the last line of a text, shortened.
func lastLine(text []byte) string {
	text = bytes.TrimSpace(text)
	return plain.Line(string(text[bytes.LastIndexByte(text, '\n')+1:]), 300)
}
