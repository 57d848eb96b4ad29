// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"
)

// ErrHostKey is wrapped by the error of Dial if the host did not prove its identity. The host was sent no key.
var ErrHostKey = errors.New("the host is not trusted")

// hostKeys are the keys that a host may have.
type hostKeys struct {
	check      ssh.HostKeyCallback
	algorithms []string // of the known keys, lest a host with several keys prove another one; nil: any
}

// hostKeys reads the file at each call, so an edit counts for the next connection.
func (c Config) hostKeys() (hostKeys, error) {
	if len(c.HostKeys) > 0 {
		return c.pinnedKeys()
	}
	return c.knownKeys()
}

func (c Config) pinnedKeys() (hostKeys, error) {
	pinned, err := parseHostKeys(c.HostKeys)
	if err != nil {
		return hostKeys{}, err
	}
	check := func(_ string, _ net.Addr, key ssh.PublicKey) error {
		if slices.ContainsFunc(pinned, func(p ssh.PublicKey) bool { return bytes.Equal(p.Marshal(), key.Marshal()) }) {
			return nil
		}
		return c.changed(key, "host_keys has "+fingerprint(pinned[0]))
	}
	return hostKeys{check, algorithmsOf(pinned)}, nil
}

func (c Config) knownKeys() (hostKeys, error) {
	f, err := openOwn("known_hosts file", c.KnownHostsFile, 0o022, "chmod go-w")
	if err != nil {
		return hostKeys{}, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return hostKeys{}, fmt.Errorf("failed to read the known_hosts file: %w", err)
	}
	lines := strings.Split(string(content), "\n")
	opened := fmt.Sprintf("/proc/self/fd/%d", f.Fd()) // the file that was checked
	accept, err := knownhosts.New(opened)
	if err != nil {
		reason := strings.ReplaceAll(err.Error(), opened, c.KnownHostsFile)
		return hostKeys{}, fmt.Errorf("failed to read the known_hosts file: %s", reason)
	}

	// plain returns the keys in the error that are the host's: the package adds those of authorities.
	plain := func(err error) (keys []ssh.PublicKey, line int) {
		var mismatch *knownhosts.KeyError
		if !errors.As(err, &mismatch) {
			return nil, 0
		}
		for _, want := range mismatch.Want {
			if !strings.HasPrefix(strings.TrimSpace(lines[want.Line-1]), "@cert-authority") {
				keys = append(keys, want.Key)
				line = want.Line
			}
		}
		return keys, line
	}
	check := func(_ string, remote net.Addr, key ssh.PublicKey) error {
		err := accept(c.address(), remote, key) // the configured name: what it resolves to proves nothing
		var mismatch *knownhosts.KeyError
		want, line := plain(err)
		switch {
		case len(want) > 0:
			last := want[len(want)-1]
			return c.changed(key, fmt.Sprintf("line %d of %s has %s", line, c.KnownHostsFile, fingerprint(last)))
		case errors.As(err, &mismatch):
			return fmt.Errorf("the host key of %s is not known: the host has %s, so add %q to %s if that is right: %w",
				c.address(), fingerprint(key), knownhosts.Line([]string{c.address()}, key), c.KnownHostsFile, ErrHostKey)
		case err != nil:
			return fmt.Errorf("%s has %s, which %s does not allow (%w): %w", c.address(), fingerprint(key),
				c.KnownHostsFile, err, ErrHostKey)
		}
		return nil
	}
	known, _ := plain(accept(c.address(), &net.TCPAddr{}, &agent.Key{})) // a key that no host has
	return hostKeys{check, algorithmsOf(known)}, nil
}

// algorithmsOf returns the algorithms of signatures by the keys.
func algorithmsOf(keys []ssh.PublicKey) (algorithms []string) {
	for _, key := range keys {
		of := []string{key.Type()}
		if key.Type() == ssh.KeyAlgoRSA {
			of = []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256} // not the one with SHA-1
		}
		for _, algorithm := range of {
			if !slices.Contains(algorithms, algorithm) {
				algorithms = append(algorithms, algorithm)
			}
		}
	}
	return algorithms
}

func (c Config) changed(key ssh.PublicKey, want string) error {
	return fmt.Errorf("the host key of %s has changed: the host has %s, but %s; it was reinstalled, or another host "+
		"answers in its place: %w", c.address(), fingerprint(key), want, ErrHostKey)
}

func fingerprint(key ssh.PublicKey) string { return key.Type() + " " + ssh.FingerprintSHA256(key) }
