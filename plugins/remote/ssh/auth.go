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

// login is a way to log in.
type login struct {
	method  ssh.AuthMethod
	source  string // of the key, for messages
	release func() // after the log-in
}

// login reads the key, or connects to the agent until ctx ends.
func (c Config) login(ctx context.Context) (login, error) {
	if c.KeyFile != "" {
		signer, err := readKey(c.KeyFile)
		if err != nil {
			return login{}, err
		}
		source := c.KeyFile + " (" + fingerprint(signer.PublicKey()) + ")"
		return login{ssh.PublicKeys(signer), source, func() {}}, nil
	}

	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.AgentSocket)
	if err != nil {
		return login{}, fmt.Errorf("failed to connect to the ssh-agent: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	release := func() {
		stop()
		conn.Close()
	}
	signers, err := agent.NewClient(conn).Signers()
	if err == nil && len(signers) == 0 {
		err = errors.New("it has no key, so add one with ssh-add")
	}
	if err != nil {
		release()
		return login{}, fmt.Errorf("failed to get a key from the ssh-agent at %s: %w", c.AgentSocket, err)
	}
	return login{ssh.PublicKeys(signers...), "the ssh-agent at " + c.AgentSocket, release}, nil
}

// maxFile is more than any file of keys has.
const maxFile = 8 << 20

func readKey(path string) (ssh.Signer, error) {
	f, err := openOwn("key", path, 0o077, "chmod 600")
	if err != nil {
		return nil, err
	}
	defer f.Close()

	content, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, fmt.Errorf("failed to read the key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(content)
	var locked *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return nil, fmt.Errorf("the key %s has a passphrase: use a key without one, or an ssh-agent", path)
	case err != nil:
		return nil, fmt.Errorf("%s is not a private key: %w", path, err)
	}
	return signer, nil
}

// openOwn opens a regular file that belongs to this user or root and lacks the forbidden permissions. The checks are on
// the descriptor, so that no other file can take the name afterwards.
func openOwn(kind, path string, forbidden fs.FileMode, remedy string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO does not block
	if err != nil {
		return nil, fmt.Errorf("failed to open the %s: %w", kind, err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("failed to open the %s: %w", kind, err)
	}
	mode, owner := info.Mode(), info.Sys().(*syscall.Stat_t).Uid
	switch {
	case !mode.IsRegular():
		err = fmt.Errorf("the %s %s is not a regular file", kind, path)
	case owner != 0 && int(owner) != os.Geteuid():
		err = fmt.Errorf("the %s %s belongs to user id %d: it must belong to this user or root", kind, path, owner)
	case mode.Perm()&forbidden != 0:
		err = fmt.Errorf("the %s %s is accessible to other users (mode %04o): %s it", kind, path, mode.Perm(), remedy)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
