// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ciphers has the fastest ones of most processors first. With ssh's own order the throughput is about half.
const ciphers = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,aes256-ctr"

// command returns the command line of ssh up to the host. The host keys of the configuration are in a file, with the
// hop as the name: 0, or 1 for the jump host.
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
		"ServerAliveCountMax=1", // it counts those without an answer before the last
	) {
		words = append(words, "-o", option)
	}
	way := c.way()
	if way == nil {
		return words, nil
	}
	jump, err := way.command(program, hostKeys, hop+1)
	if err != nil {
		return nil, fmt.Errorf("the jump host: %w", err)
	}
	jump = append(jump, "-W", c.address(), "--", way.Host)
	return append(words, "-o", "ProxyCommand="+quote(jump)), nil
}

// login returns the options for the key or the agent.
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

// hostKeys writes the host keys of the configuration, in the format of known_hosts, into a file in memory. Its name is
// a path for processes of the same user.
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

// checkKey refuses what is no regular file of this user or root, or is open to others. This shows mistakes alone: ssh
// opens the file again by its name, so the directory must be the operator's.
func checkKey(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("failed to look at the key: %w", err)
	}
	mode, owner := info.Mode(), info.Sys().(*syscall.Stat_t).Uid
	switch {
	case !mode.IsRegular():
		return fmt.Errorf("the key %s is not a regular file", path)
	case owner != 0 && int(owner) != os.Geteuid():
		return fmt.Errorf("the key %s belongs to user id %d: it must belong to this user or root", path, owner)
	case mode.Perm()&0o077 != 0:
		return fmt.Errorf("the key %s is accessible to other users (mode %04o): chmod 600 it", path, mode.Perm())
	}
	return nil
}

// quote quotes words for a shell of POSIX.
func quote(words []string) string {
	var quoted []string
	for _, word := range words {
		quoted = append(quoted, "'"+strings.ReplaceAll(word, "'", `'\''`)+"'")
	}
	return strings.Join(quoted, " ")
}
