// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"crypto/ed25519"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/crypto/ssh"

	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"
)

// configOf is how to reach a server.
func configOf(s *sshdtest.Server) Config {
	return Config{Host: s.Host, Port: s.Port, User: s.User, KeyFile: s.KeyFile, HostKeys: []string{s.HostKey}}
}

// dial connects until the end of the test.
func dial(t *testing.T, c Config) *Conn {
	t.Helper()
	conn, err := Dial(t.Context(), c)
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, conn.Close()) })
	return conn
}

// newKey makes a key pair. The private key is in a file.
func newKey(t *testing.T) (file string, public ssh.PublicKey) {
	t.Helper()
	_, secret, err := ed25519.GenerateKey(nil)
	must.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(secret, "")
	must.NoError(t, err)
	signer, err := ssh.NewSignerFromKey(secret)
	must.NoError(t, err)
	return write(t, string(pem.EncodeToMemory(block))), signer.PublicKey()
}

// line is a public key in the format of authorized_keys.
func line(key ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) }

// write writes a private file.
func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
