// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/plugins/remote/engine"
)

// token is what a question is asked with.
type token struct {
	name    string // for people
	secret  string // empty: none
	secrets string // the secrets directory of an identity's task, where the Task API may be
	err     error  // why there is none
}

// tokens are tried in turn: the plugin's own, then the identity of the asker, which may be nil. Without a token file,
// no token is the plugin's own.
func (c *Client) tokens(a *engine.Asker) []token {
	own := token{name: "without a token"}
	if c.o.TokenFile != "" {
		own.name = "with the token of the plugin"
		own.secret, own.err = readToken(c.o.TokenFile)
	}
	if a == nil {
		return []token{own}
	}
	identity := token{name: "with the task's identity", secret: a.Token, secrets: a.Secrets}
	if identity.secret == "" {
		identity.secret = readIdentity(a.Secrets)
	}
	switch {
	case identity.secret == "":
		return []token{own}
	case c.o.TokenFile == "": // with access control, no token sees nothing
		return []token{identity, own}
	}
	return []token{own, identity}
}

// longest is the limit of a token's length.
const longest = 16 << 10

// readToken reads a token from the operator's file.
func readToken(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fmt.Errorf("failed to open token file: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("failed to read token file: %w", err)
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case !st.Mode().IsRegular():
		return "", fmt.Errorf("token file %s is no regular file", path)
	case st.Mode().Perm()&0o026 != 0:
		return "", fmt.Errorf("token file %s has mode %#o: others may read or change it, 0600 is right", path,
			st.Mode().Perm())
	case !ok || sys.Uid != 0 && int(sys.Uid) != os.Geteuid():
		return "", fmt.Errorf("token file %s is another user's", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, longest))
	if err != nil {
		return "", fmt.Errorf("failed to read token file: %w", err)
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" || strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("token file %s has no token in it", path)
	}
	return secret, nil
}

// identityForm is that of a JSON web token. The task may have put anything else there.
var identityForm = regexp.MustCompile(`^[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$`)

// readIdentity reads the identity that Nomad wrote for a task, empty if there is none.
func readIdentity(secrets string) string {
	fd, err := openSecret(secrets, "nomad_token")
	if err != nil {
		return ""
	}
	defer fd.Close()
	if st, err := fd.Stat(); err != nil || !st.Mode().IsRegular() {
		return ""
	}
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", fd.Fd()))
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, longest))
	if err != nil || !identityForm.Match(text) {
		return ""
	}
	return string(text)
}

// openSecret names a file of a task's secrets directory, without opening what it is (O_PATH). The task may write below
// its own directory, so no link there is followed; the allocation's directory above is Nomad's.
func openSecret(secrets, name string) (*os.File, error) {
	if !filepath.IsAbs(secrets) {
		return nil, errors.New("the task has no secrets directory")
	}
	task := filepath.Dir(filepath.Clean(secrets))
	dir, err := os.OpenFile(filepath.Dir(task), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path := filepath.Join(filepath.Base(task), filepath.Base(secrets), name)
	fd, err := unix.Openat2(int(dir.Fd()), path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("failed to open %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
