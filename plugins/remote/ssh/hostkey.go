// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	hostdb "github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// ErrHostKey is wrapped by the error of a host that did not prove who it is. It was sent nothing.
var ErrHostKey = errors.New("the host is not trusted")

// hostKeys are the keys that a host may have.
type hostKeys struct {
	check      ssh.HostKeyCallback
	algorithms []string // of these keys; nil: any, to tell a person which one the host has

	certificates bool // one of an authority will do, too
}

// hostKeys reads the keys each time, so that an edit of the file counts at the next attempt.
func (c Config) hostKeys() (hostKeys, error) {
	if len(c.HostKeys) > 0 {
		return c.pinned()
	}
	if c.KnownHostsFile == "" {
		return hostKeys{}, fmt.Errorf("no key of %s is given: set host_keys or known_hosts_file", c.hostPort())
	}
	known, err := c.knownHosts()
	if err != nil {
		return hostKeys{}, err
	}
	accepts := known.HostKeyCallback()
	keys := hostKeys{check: func(_ string, remote net.Addr, key ssh.PublicKey) error {
		// by the name that is configured: what it resolves to is no proof
		err := accepts(c.hostPort(), remote, key)
		var mismatch *knownhosts.KeyError
		switch {
		case errors.As(err, &mismatch) && len(mismatch.Want) == 0:
			return fmt.Errorf("the host key of %s is not known: it has %s, so add %q to %s if that is right: %w",
				c.hostPort(), fingerprint(key), knownhosts.Line([]string{c.hostPort()}, key), c.KnownHostsFile, ErrHostKey)
		case errors.As(err, &mismatch):
			want := mismatch.Want[0]
			return changed(c, key, fmt.Sprintf("line %d of %s has %s", want.Line, c.KnownHostsFile, fingerprint(want.Key)))
		case err != nil:
			return fmt.Errorf("%s has %s, which %s does not allow (%w): %w", c.hostPort(), fingerprint(key), c.KnownHostsFile,
				err, ErrHostKey)
		}
		return nil
	}}
	for _, k := range known.HostKeys(c.hostPort()) {
		if k.Cert {
			keys.addCertificates()
		} else {
			keys.add(k.PublicKey)
		}
	}
	return keys, nil
}

// knownHosts reads the file. Whoever may change it chooses who gets the tasks' secrets.
func (c Config) knownHosts() (*hostdb.HostKeyDB, error) {
	f, err := openOwn("known_hosts file", c.KnownHostsFile, 0o022, "chmod go-w")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	opened := fmt.Sprintf("/proc/self/fd/%d", f.Fd()) // what was checked, whatever has its name by now
	known, err := hostdb.NewDB(opened)
	if err != nil {
		why := strings.ReplaceAll(err.Error(), opened, c.KnownHostsFile)
		return nil, fmt.Errorf("the known_hosts file can't be read: %s", why)
	}
	return known, nil
}

func (c Config) pinned() (hostKeys, error) {
	var allowed []ssh.PublicKey
	var keys hostKeys
	for _, text := range c.HostKeys {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(text))
		if err != nil {
			return keys, fmt.Errorf("host_keys has %q, which is no public key: write \"ssh-ed25519 AAAA…\"", text)
		}
		allowed = append(allowed, key)
		keys.add(key)
	}
	keys.check = func(_ string, _ net.Addr, key ssh.PublicKey) error {
		if slices.ContainsFunc(allowed, func(a ssh.PublicKey) bool { return bytes.Equal(a.Marshal(), key.Marshal()) }) {
			return nil
		}
		return changed(c, key, "host_keys has "+fingerprint(allowed[0]))
	}
	return keys, nil
}

// add adds the algorithms of a key, so that a host that has several keys proves this one.
func (k *hostKeys) add(key ssh.PublicKey) {
	if key.Type() == ssh.KeyAlgoRSA { // not by SHA-1
		k.allow(ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256)
	} else {
		k.allow(key.Type())
	}
}

// addCertificates adds the algorithms of certificates: an authority's may be of keys of any kind.
func (k *hostKeys) addCertificates() {
	k.certificates = true
	for _, a := range ssh.SupportedAlgorithms().HostKeys {
		if strings.Contains(a, "-cert-") {
			k.allow(a)
		}
	}
}

func (k *hostKeys) allow(algorithms ...string) {
	for _, a := range algorithms {
		if !slices.Contains(k.algorithms, a) {
			k.algorithms = append(k.algorithms, a)
		}
	}
}

func changed(c Config, key ssh.PublicKey, want string) error {
	return fmt.Errorf("the host key of %s has changed: it has %s, and %s; the host was installed anew, or another one "+
		"answers for it: %w", c.hostPort(), fingerprint(key), want, ErrHostKey)
}

func fingerprint(key ssh.PublicKey) string { return key.Type() + " " + ssh.FingerprintSHA256(key) }
