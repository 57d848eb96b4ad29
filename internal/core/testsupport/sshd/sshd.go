// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package sshd prepares a private OpenSSH server with its own keys, for tests and demonstrations.
package sshd

import (
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Server describes a prepared server.
type Server struct {
	Args    []string // the server's command line; it stays in the foreground and logs to standard error
	Port    int      // on 127.0.0.1
	KeyFile string   // private key to log in as any user that the server can switch to
	HostKey string   // public key of the host: "ssh-ed25519 AAAA…"
}

// ErrMissing is returned by Write on a machine without an OpenSSH server.
var ErrMissing = errors.New("the program sshd is missing (package openssh-server)")

// Write writes to a directory the files of a server that listens on 127.0.0.1. It keeps existing keys. The options are
// lines of sshd_config(5), which take precedence over those of this package.
func Write(dir string, port int, options ...string) (Server, error) {
	program, err := find()
	if err != nil {
		return Server{}, err
	}
	hostKey, err := key(filepath.Join(dir, "host_key"))
	if err != nil {
		return Server{}, err
	}
	server := Server{Port: port, KeyFile: filepath.Join(dir, "client_key"), HostKey: hostKey}
	clientKey, err := key(server.KeyFile)
	if err != nil {
		return Server{}, err
	}

	config := append(options,
		"ListenAddress "+net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		"HostKey "+filepath.Join(dir, "host_key"),
		"AuthorizedKeysFile "+filepath.Join(dir, "authorized_keys"),
		"AuthenticationMethods publickey",
		"PermitRootLogin prohibit-password",
		"PidFile none",
		"StrictModes no", // a parent directory may be writable by every user, as /tmp is
		"UsePAM no",
		"UseDNS no",
		"MaxStartups 200",
		"LogLevel VERBOSE",
	)
	// since 9.8 sshd rejects clients after repeated failures; earlier versions lack the option
	const penalties = "PerSourcePenalties no"
	if exec.Command(program, "-t", "-f", os.DevNull, "-h", filepath.Join(dir, "host_key"), "-o", penalties).Run() == nil {
		config = append(config, penalties)
	}
	for name, content := range map[string]string{
		"authorized_keys": clientKey + "\n",
		"sshd_config":     strings.Join(config, "\n") + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			return Server{}, err
		}
	}
	if os.Geteuid() == 0 { // like the service unit in package openssh-server
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			return Server{}, err
		}
	}
	server.Args = []string{program, "-D", "-e", "-f", filepath.Join(dir, "sshd_config")}
	return server, nil
}

// Endpoint returns the endpoint block of the remote driver's configuration for the server's host. Jobs refer to the
// endpoint by name, tasks run below dir, and the driver logs in as the user.
func (s Server) Endpoint(name, dir, user string) string {
	return fmt.Sprintf(`endpoint %q {
  dir = %q
  ssh {
    host      = "127.0.0.1"
    port      = %d
    user      = %q
    key_file  = %q
    host_keys = [%q]
  }
}
`, name, dir, s.Port, user, s.KeyFile, s.HostKey)
}

// find returns the absolute path of sshd, which does not run if it is called by a relative path.
func find() (string, error) {
	for _, name := range []string{"sshd", "/usr/sbin/sshd", "/run/current-system/sw/bin/sshd"} {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", ErrMissing
}

// key makes a key pair unless the file exists, and returns the public key.
func key(path string) (string, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		_, secret, err := ed25519.GenerateKey(nil)
		if err != nil {
			return "", err
		}
		block, err := ssh.MarshalPrivateKey(secret, "outrider")
		if err != nil {
			return "", err
		}
		content = pem.EncodeToMemory(block)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	signer, err := ssh.ParsePrivateKey(content)
	if err != nil {
		return "", fmt.Errorf("failed to read the key %s: %w", path, err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))), nil
}
