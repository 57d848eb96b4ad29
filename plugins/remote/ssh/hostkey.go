// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"
	"golang.org/x/sys/unix"
)

// hostKeys returns a check of the host's key, and the algorithms of the known keys, lest a host with several keys prove
// another one. Without known keys there are no algorithms: any will do.
func (c Config) hostKeys() (check ssh.HostKeyCallback, algorithms []string, err error) {
	content, source, err := c.knownHosts()
	if err != nil {
		return nil, nil, err
	}
	accept, err := parseKnownHosts(content, source)
	if err != nil {
		return nil, nil, err
	}

	err = accept(c.address(), &net.TCPAddr{}, &agent.Key{}) // a key that no host has
	var mismatch *knownhosts.KeyError
	if !errors.As(err, &mismatch) {
		return nil, nil, fmt.Errorf("failed to look for %s in %s: %w", c.address(), source, err)
	}
	lines := strings.Split(content, "\n")
	known := slices.DeleteFunc(mismatch.Want, func(k knownhosts.KnownKey) bool { // a key of an authority is not the host's
		return strings.HasPrefix(strings.TrimSpace(lines[k.Line-1]), "@cert-authority")
	})
	check = func(_ string, remote net.Addr, key ssh.PublicKey) error {
		err := accept(c.address(), remote, key) // the configured name: what it resolves to proves nothing
		var mismatch *knownhosts.KeyError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &mismatch) && len(known) > 0:
			return fmt.Errorf("the host key of %s has changed: the host has %s, but line %d of %s has %s; it was "+
				"reinstalled, or another host answers in its place", c.address(), fingerprint(key), known[0].Line, source,
				fingerprint(known[0].Key))
		case errors.As(err, &mismatch):
			return fmt.Errorf("the host key of %s is not known: the host has %s, so add %q to %s if that is right",
				c.address(), fingerprint(key), knownhosts.Line([]string{c.address()}, key), source)
		}
		return fmt.Errorf("%s has %s, which %s does not allow: %w", c.address(), fingerprint(key), source, err)
	}
	return check, algorithmsOf(known), nil
}

// knownHosts returns the known keys in the format of known_hosts. The file is read at each call, so an edit counts for
// the next connection.
func (c Config) knownHosts() (content, source string, err error) {
	if c.KnownHostsFile != "" {
		file, err := readOwn("known_hosts file", c.KnownHostsFile, 0o022, "chmod go-w")
		return string(file), c.KnownHostsFile, err
	}
	keys, err := parseHostKeys(c.HostKeys)
	for _, key := range keys {
		content += knownhosts.Line([]string{c.address()}, key) + "\n"
	}
	return content, "host_keys", err
}

// parseKnownHosts parses by package knownhosts, which reads files only: this one is in memory.
func parseKnownHosts(content, source string) (ssh.HostKeyCallback, error) {
	fd, err := unix.MemfdCreate("known_hosts", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("failed to copy %s: %w", source, err)
	}
	f := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/self/fd/%d", fd))
	defer f.Close()
	if _, err := f.WriteString(content); err != nil {
		return nil, fmt.Errorf("failed to copy %s: %w", source, err)
	}

	accept, err := knownhosts.New(f.Name())
	if err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), f.Name(), source))
	}
	return accept, nil
}

// algorithmsOf returns the algorithms of signatures by the keys.
func algorithmsOf(known []knownhosts.KnownKey) (algorithms []string) {
	for _, k := range known {
		if k.Key.Type() == ssh.KeyAlgoRSA {
			algorithms = append(algorithms, ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256) // not the one with SHA-1
			continue
		}
		algorithms = append(algorithms, k.Key.Type())
	}
	slices.Sort(algorithms)
	return slices.Compact(algorithms)
}

func fingerprint(key ssh.PublicKey) string { return key.Type() + " " + ssh.FingerprintSHA256(key) }
