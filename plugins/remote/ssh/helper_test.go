// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/crypto/ssh"

	"github.com/outrider-dev/outrider/plugins/remote/simulate"
)

func TestMain(m *testing.M) {
	simulate.Main()
	os.Exit(m.Run())
}

// configOf is how to reach a simulated host.
func configOf(h *simulate.Host) Config {
	return Config{
		Host: h.Address, Port: h.Port, User: simulate.User, KeyFile: h.KeyFile, HostKeys: []string{h.HostKey},
		Timeout: 5 * time.Second,
	}
}

// newClient makes a client until the end of the test.
func newClient(t *testing.T, c Config) *Client {
	t.Helper()
	client, err := New(c)
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, client.Close()) })
	return client
}

// newKey makes a key pair. The private key is in a file.
func newKey(t *testing.T) (file string, public ssh.PublicKey) {
	t.Helper()
	_, secret, err := ed25519.GenerateKey(nil)
	must.NoError(t, err)
	block, err := ssh.MarshalPrivateKey(secret, "")
	must.NoError(t, err)
	file = filepath.Join(t.TempDir(), "key")
	must.NoError(t, os.WriteFile(file, pem.EncodeToMemory(block), 0o600))
	signer, err := ssh.NewSignerFromKey(secret)
	must.NoError(t, err)
	return file, signer.PublicKey()
}

// line is a public key in the form of authorized_keys.
func line(key ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) }

// write writes a file of the test's own.
func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// Connect makes sure that there is a connection.
func (c *Client) Connect(ctx context.Context) error {
	_, err := c.connect(ctx)
	return err
}
