// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/plain"
)

var fingerprint = regexp.MustCompile(`SHA256:[A-Za-z0-9+/]+`)

// explain returns why there is no connection, by what ssh wrote. The ssh to the jump host writes first.
func (c Config) explain(text string) error {
	way := c.way()
	said, _, unanswered := strings.Cut(text, "kex_exchange_identification")
	ofJump := way != nil && unanswered && said != ""
	if ofJump && strings.Contains(said, "stdio forwarding failed") {
		return fmt.Errorf("the jump host %s failed to connect to %s, or does not allow it (AllowTcpForwarding)",
			way, c.address())
	}
	if ofJump {
		return fmt.Errorf("the jump host: %w", way.explain(said))
	}
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case has("Could not resolve hostname"):
		return fmt.Errorf("failed to look up the name %s: %s", c.Host, lastLine(text))
	case has("Connection refused"):
		return fmt.Errorf("no SSH server listens at %s: %s", c.address(), lastLine(text))
	case has("Host key verification failed"):
		return fmt.Errorf("the host key of %s is not that of host_keys (it is %s): the host was reinstalled, or another "+
			"one answers in its place", c.address(), cmp.Or(fingerprint.FindString(text), "unknown"))
	case has("Permission denied"), has("Too many authentication failures"):
		return fmt.Errorf("the SSH server at %s refuses user %s with %s: there is no such user, or its authorized_keys "+
			"lacks the key", c.address(), c.User, cmp.Or(c.KeyFile, "the keys of the ssh-agent at "+c.AgentSocket))
	}
	return fmt.Errorf("there is no connection to %s: %s", c, cmp.Or(lastLine(text), "the host allows no session"))
}

// lastLine returns the last line of a text, shortened.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return plain.Line(text[strings.LastIndexByte(text, '\n')+1:], 300)
}
