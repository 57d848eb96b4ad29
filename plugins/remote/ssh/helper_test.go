// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"
)

func hopOf(s *sshdtest.Server) Hop {
	return Hop{Host: s.Host, Port: s.Port, User: s.User, HostKeys: []string{s.HostKey}}
}

// configOf returns the configuration for a server.
func configOf(s *sshdtest.Server) Config {
	return Config{Hop: hopOf(s), KeyFile: s.KeyFile}
}

// jumpOf returns s as the jump host on the way to another server, and lets that server's key log in on s.
func jumpOf(t *testing.T, s, to *sshdtest.Server) *Hop {
	t.Helper()
	public, err := exec.Command("ssh-keygen", "-y", "-f", to.KeyFile).Output()
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(s.Dir, "authorized_keys"), public, 0o644))
	hop := hopOf(s)
	return &hop
}

// run runs a script with input, and returns its output.
func run(t *testing.T, c Config, input, script string, args ...string) (string, error) {
	t.Helper()
	conn, err := c.Start(t.Context(), script, args...)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	go func() {
		_, _ = io.WriteString(conn, input)
		raw, err := conn.SyscallConn()
		if err == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) })
		}
	}()
	out, err := io.ReadAll(conn)
	return string(out), err
}

// works checks that a command can be run.
func works(t *testing.T, c Config, note string) {
	t.Helper()
	out, err := run(t, c, "", "echo here")
	must.NoError(t, err, must.Sprint(note))
	must.Eq(t, "here\n", out)
}

func keygen(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("ssh-keygen", append([]string{"-q"}, args...)...).CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	return string(out)
}

// newKey creates a key pair, and returns the file of the private key, and the public key.
func newKey(t *testing.T, args ...string) (file, public string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "key")
	keygen(t, append([]string{"-t", "ed25519", "-N", "", "-C", "", "-f", file}, args...)...)
	content, err := os.ReadFile(file + ".pub")
	must.NoError(t, err)
	return file, string(content)
}

// write writes a file with mode 0600, and returns its path.
func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
