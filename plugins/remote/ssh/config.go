// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package ssh runs scripts on hosts with an OpenSSH server. Each script has its own connection, a process of ssh(1).
package ssh

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config describes a host, and how to log in there.
type Config struct {
	Hop

	KeyFile     string `codec:"key_file" doc:"File with a private key without passphrase, absolute. Only its owner may be able to read it."`
	AgentSocket string `codec:"agent_socket" doc:"Socket of an ssh-agent with the key, absolute, instead of key_file."`

	Jump *Hop `codec:"jump" doc:"A host on the way, as with ssh -J, with the same key."`
}

// Hop is an SSH server.
type Hop struct {
	Host     string   `codec:"host" required:"true" doc:"Name or address."`
	Port     int      `codec:"port" default:"22" min:"1" max:"65535" doc:"Port of the SSH server."`
	User     string   `codec:"user" required:"true" doc:"User on the host."`
	HostKeys []string `codec:"host_keys" doc:"Public keys of the host, as ssh-keyscan prints them, without the name: \"ssh-ed25519 AAAA…\". Any other key is refused."`
}

// way returns the configuration of the jump host, or nil without one.
func (c Config) way() *Config {
	if c.Jump == nil {
		return nil
	}
	return &Config{Hop: *c.Jump, KeyFile: c.KeyFile, AgentSocket: c.AgentSocket}
}

// Check validates the configuration without reading files or connecting.
func (c Config) Check() error {
	switch {
	case (c.KeyFile == "") == (c.AgentSocket == ""):
		return errors.New("set either key_file or agent_socket, which provides the login key")
	case len(c.HostKeys) == 0:
		return errors.New("set host_keys to the public keys of the host (see ssh-keyscan)")
	case !hostName.MatchString(c.Host):
		return fmt.Errorf("host %q is neither a name nor an address: use only letters, digits, '.', '_', '-' and ':'", c.Host)
	case !userName.MatchString(c.User):
		return fmt.Errorf("user %q is not the name of a user: use only letters, digits, '.', '_', '-', '+' and '@'", c.User)
	}
	for _, path := range []string{c.KeyFile, c.AgentSocket} {
		if path != "" && !safePath.MatchString(path) {
			return fmt.Errorf("the path %q is not valid: use an absolute path of letters, digits and /._-+@:,", path)
		}
	}
	for _, key := range c.HostKeys {
		if !publicKey.MatchString(key) {
			return fmt.Errorf("%q in host_keys is not a public key: use the form \"ssh-ed25519 AAAA…\"", key)
		}
	}
	way := c.way()
	if way == nil {
		return nil
	}
	if err := way.Check(); err != nil {
		return fmt.Errorf("jump: %w", err)
	}
	return nil
}

// All versions of ssh and all shells read a matching text as one word, never as an option, a pattern or a variable.
var (
	hostName = regexp.MustCompile(`^[A-Za-z0-9_:][A-Za-z0-9._:-]*$`)
	userName = regexp.MustCompile(`^[A-Za-z0-9._+@][A-Za-z0-9._+@-]*$`)
	safePath = regexp.MustCompile(`^/[A-Za-z0-9/._+@:,-]*$`)

	publicKey = regexp.MustCompile(`^[a-z0-9@.-]+[ \t]+AAAA[A-Za-z0-9+/]+=*([ \t].*)?\s*$`) // with an optional comment
)

// String returns user@host:port.
func (c Config) String() string {
	return c.User + "@" + c.address()
}

func (c Config) address() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.Port)) }

// ciphers begins with the ciphers that are fastest on most processors. With ssh's own order, throughput is about half.
const ciphers = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,aes256-ctr"

// command returns ssh's command line up to its last option. The file hostKeys has the number of the hop instead of a
// host name: 0 for the host, and 1 for the jump host.
func (c Config) command(program, hostKeys string, hop int) ([]string, error) {
	login, err := c.login()
	if err != nil {
		return nil, err
	}

	words := []string{program, "-F", "none", "-T", "-l", c.User, "-p", fmt.Sprint(c.Port)}
	for _, option := range append(login,
		"UserKnownHostsFile="+hostKeys,
		fmt.Sprintf("HostKeyAlias=%d", hop),
		"BatchMode=yes",
		"LogLevel=ERROR",
		"StrictHostKeyChecking=yes",
		"GlobalKnownHostsFile=/dev/null",
		"CheckHostIP=no",
		"UpdateHostKeys=no",
		"PreferredAuthentications=publickey",
		"Ciphers="+ciphers,
		fmt.Sprintf("ConnectTimeout=%d", connectTime/time.Second),
		fmt.Sprintf("ServerAliveInterval=%d", silentTime/2/time.Second),
		"ServerAliveCountMax=1", // ssh ends if a message is still unanswered when the next one is due
	) {
		words = append(words, "-o", option)
	}
	way := c.way()
	if way == nil {
		return words, nil
	}
	jump, err := way.command(program, hostKeys, hop+1)
	if err != nil {
		return nil, fmt.Errorf("failed to use the jump host: %w", err)
	}
	jump = append(jump, "-W", c.address(), "--", way.Host)
	return append(words, "-o", "ProxyCommand="+quote(jump)), nil
}

// login returns ssh's options for the key file or the agent.
func (c Config) login() ([]string, error) {
	if c.AgentSocket != "" {
		agent, err := net.Dial("unix", c.AgentSocket)
		if err != nil {
			return nil, fmt.Errorf("failed to connect to the ssh-agent: %w", err)
		}
		return []string{"IdentityAgent=" + c.AgentSocket, "IdentityFile=none"}, agent.Close()
	}
	if err := checkKey(c.KeyFile); err != nil {
		return nil, err
	}
	return []string{"IdentityFile=" + c.KeyFile, "IdentitiesOnly=yes", "IdentityAgent=none"}, nil
}

// hostKeys writes the configuration's host keys to a file in memory, in the format of known_hosts. The name of the file
// is a path that other processes of this user can open.
func (c Config) hostKeys() (*os.File, error) {
	fd, err := unix.MemfdCreate("known_hosts", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd))
	hop := 0
	for next := &c; next != nil; next = next.way() {
		for _, key := range next.HostKeys {
			if _, err := fmt.Fprintln(file, hop, key); err != nil {
				_ = file.Close()
				return nil, err
			}
		}
		hop++
	}
	return file, nil
}

// checkKey refuses a key that is not a regular file, does not belong to this user or root, or is accessible to others.
// It only detects mistakes, because ssh opens the file again by name: other users must not be able to replace it.
func checkKey(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("failed to check key_file: %w", err)
	}
	mode, owner := info.Mode(), info.Sys().(*syscall.Stat_t).Uid
	switch {
	case !mode.IsRegular():
		return fmt.Errorf("the key %s is not a regular file", path)
	case owner != 0 && int(owner) != os.Geteuid():
		return fmt.Errorf("the key %s belongs to user id %d: chown it to root or to the user of this process", path, owner)
	case mode.Perm()&0o077 != 0:
		return fmt.Errorf("the key %s is accessible to other users (mode %04o): chmod 600 it", path, mode.Perm())
	}
	return nil
}

// quote quotes words for a POSIX shell.
func quote(words []string) string {
	var quoted []string
	for _, word := range words {
		quoted = append(quoted, "'"+strings.ReplaceAll(word, "'", `'\''`)+"'")
	}
	return strings.Join(quoted, " ")
}
