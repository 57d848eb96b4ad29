// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// login reads the key, or connects to the agent until ctx ends. The source of the key is for messages.
func (c Config) login(ctx context.Context) (method ssh.AuthMethod, source string, err error) {
	if c.KeyFile != "" {
		signer, err := readKey(c.KeyFile)
		if err != nil {
			return nil, "", err
		}
		return ssh.PublicKeys(signer), c.KeyFile + " (" + fingerprint(signer.PublicKey()) + ")", nil
	}

	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.AgentSocket)
	if err != nil {
		return nil, "", fmt.Errorf("failed to connect to the ssh-agent: %w", err)
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	signers, err := agent.NewClient(conn).Signers()
	if err == nil && len(signers) == 0 {
		err = errors.New("it has no key, so add one with ssh-add")
	}
	if err != nil {
		return nil, "", fmt.Errorf("failed to get a key from the ssh-agent at %s: %w", c.AgentSocket, err)
	}
	source = fmt.Sprintf("the ssh-agent at %s, which has %d (the server tries MaxAuthTries)", c.AgentSocket, len(signers))
	return ssh.PublicKeys(signers...), source, nil
}

func readKey(path string) (ssh.Signer, error) {
	content, err := readOwn("key", path, 0o077, "chmod 600")
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(content)
	if err != nil {
		return nil, fmt.Errorf("%s is not a private key without a passphrase: %w", path, err)
	}
	return signer, nil
}

// readOwn reads a regular file that belongs to this user or root and lacks the forbidden permissions. The checks are on
// the descriptor, so that no other file can take the name afterwards.
func readOwn(kind, path string, forbidden fs.FileMode, remedy string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO does not block
	if err != nil {
		return nil, fmt.Errorf("failed to open the %s: %w", kind, err)
	}
	defer f.Close()

	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("failed to open the %s: %w", kind, err)
	}
	mode, owner := info.Mode(), info.Sys().(*syscall.Stat_t).Uid
	switch {
	case !mode.IsRegular():
		return nil, fmt.Errorf("the %s %s is not a regular file", kind, path)
	case owner != 0 && int(owner) != os.Geteuid():
		return nil, fmt.Errorf("the %s %s belongs to user id %d: it must belong to this user or root", kind, path, owner)
	case mode.Perm()&forbidden != 0:
		return nil, fmt.Errorf("the %s %s is accessible to other users (mode %04o): %s it", kind, path, mode.Perm(), remedy)
	}
	return io.ReadAll(f)
}
