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

// proof is how to log in.
type proof struct {
	method  ssh.AuthMethod
	from    string // for a person
	release func()
}

// proof returns how to log in. The caller releases it after that.
func (c Config) proof(ctx context.Context) (proof, error) {
	if c.KeyFile != "" {
		signer, err := readKey(c.KeyFile)
		if err != nil {
			return proof{}, err
		}
		return proof{ssh.PublicKeys(signer), c.KeyFile + " (" + fingerprint(signer.PublicKey()) + ")", func() {}}, nil
	}
	if c.AgentSocket == "" {
		return proof{}, errors.New("there is no key to log in with: set key_file or agent_socket")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.AgentSocket)
	if err != nil {
		return proof{}, fmt.Errorf("the ssh-agent can't be reached: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	release := func() { stop(); conn.Close() }
	signers, err := agent.NewClient(conn).Signers()
	if err == nil && len(signers) == 0 {
		err = errors.New("it has no key")
	}
	if err != nil {
		release()
		return proof{}, fmt.Errorf("the ssh-agent at %s is of no use: %w", c.AgentSocket, err)
	}
	return proof{ssh.PublicKeys(signers...), "the ssh-agent at " + c.AgentSocket, release}, nil
}

// maxKey is more than any key file has.
const maxKey = 1 << 20

// readKey reads a private key that only its owner, who is this user or root, can read.
func readKey(path string) (ssh.Signer, error) {
	f, err := openOwn("key", path, 0o077, "chmod 600")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxKey))
	if err != nil {
		return nil, fmt.Errorf("the key can't be read: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(content)
	if locked := (*ssh.PassphraseMissingError)(nil); errors.As(err, &locked) {
		return nil, fmt.Errorf("the key %s has a passphrase: use one without, or an ssh-agent", path)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is no private key that can be used: %w", path, err)
	}
	return signer, nil
}

// openOwn opens a file of this user or root that is closed to others in the given way.
func openOwn(what, path string, closed fs.FileMode, do string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // without waiting for the other end of a FIFO
	if err != nil {
		return nil, fmt.Errorf("the %s can't be read: %w", what, err)
	}
	info, err := f.Stat()
	if err == nil {
		err = checkOwn(what, path, info, closed, do)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func checkOwn(what, path string, info fs.FileInfo, closed fs.FileMode, do string) error {
	switch owner := info.Sys().(*syscall.Stat_t).Uid; {
	case !info.Mode().IsRegular():
		return fmt.Errorf("the %s %s is not a file", what, path)
	case owner != 0 && int(owner) != os.Geteuid():
		return fmt.Errorf("the %s %s belongs to user id %d: it must be this user's, or root's", what, path, owner)
	case info.Mode().Perm()&closed != 0:
		return fmt.Errorf("the %s %s is open to others (mode %04o): %s it", what, path, info.Mode().Perm(), do)
	}
	return nil
}
