// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
)

// private is where the host has its own directory.
const private = "/run/simulate"

// firstID is the first user id that User may get.
const firstID = 50000

// prepare makes the files of a host.
func (h *Host) prepare(ctx context.Context) error {
	hostKey, err := h.key("host_key")
	if err != nil {
		return err
	}
	clientKey, err := h.key("client_key")
	if err != nil {
		return err
	}
	h.KeyFile, h.HostKey = h.path("client_key"), line(hostKey)
	if err := h.place(ctx); err != nil {
		return err
	}
	users, id, err := h.users("/etc/passwd")
	if err != nil {
		return err
	}
	for name, content := range map[string]string{
		"authorized_keys": line(clientKey) + "\n",
		"passwd":          users,
		"shadow":          Root + ":*:::::::\n" + User + ":*:::::::\n", // a password that starts with ! is a locked account
		"sshd_config":     h.config(ctx),
	} {
		if err := os.WriteFile(h.path(name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	for user, id := range map[string]int{Root: 0, User: id} {
		home := h.path("home", user)
		if err := os.MkdirAll(home, 0o755); err != nil {
			return err
		}
		if err := os.Chown(home, id, id); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) path(names ...string) string {
	return filepath.Join(append([]string{h.dir}, names...)...)
}

// key makes a key pair and stores the private key.
func (h *Host) key(name string) (ssh.PublicKey, error) {
	public, secret, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(secret, "simulated")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(h.path(name), pem.EncodeToMemory(block), 0o600); err != nil {
		return nil, err
	}
	return ssh.NewPublicKey(public)
}

// line is a key as in authorized_keys, without a comment.
func line(key ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) }

// place chooses where the server listens.
func (h *Host) place(ctx context.Context) (err error) {
	if h.options.Network {
		h.link, err = newLink(ctx)
		h.Address, h.Port = h.link.there, 22
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	h.Address, h.Port = "127.0.0.1", l.Addr().(*net.TCPAddr).Port
	return nil
}

// users is the host's /etc/passwd: the machine's, with other homes and shells, and with the user of the server's
// process that talks to strangers (sshd(8)).
func (h *Host) users(of string) (passwd string, id int, err error) {
	all, err := os.ReadFile(of)
	if err != nil {
		return "", 0, err
	}
	var lines []string
	var ids []string
	server := false
	for entry := range strings.Lines(string(all)) {
		fields := strings.Split(strings.TrimSpace(entry), ":")
		if len(fields) < 7 || fields[0] == Root || fields[0] == User {
			continue
		}
		server = server || fields[0] == "sshd"
		ids, lines = append(ids, fields[2]), append(lines, entry)
	}
	for id = firstID; slices.Contains(ids, strconv.Itoa(id)); id++ {
	}
	shell := cmp.Or(h.options.Shell, "/bin/sh")
	lines = append(lines, fmt.Sprintf("%s:x:%d:%d::%s:%s\n", Root, 0, 0, h.Home(Root), shell),
		fmt.Sprintf("%s:x:%d:%d::%s:%s\n", User, id, id, h.Home(User), shell))
	if !server {
		lines = append(lines, "sshd:x:102:65534::/run/sshd:/usr/sbin/nologin\n")
	}
	return strings.Join(lines, ""), id, nil
}

// config is the host's sshd_config(5), in which the first value of an option counts.
func (h *Host) config(ctx context.Context) string {
	lines := append(slices.Clone(h.options.Config),
		"ListenAddress "+h.HostPort(),
		"HostKey "+filepath.Join(private, "host_key"),
		"AuthorizedKeysFile "+filepath.Join(private, "authorized_keys"),
		"AuthenticationMethods publickey",
		"PermitRootLogin prohibit-password",
		"PidFile none",
		"StrictModes no", // the files are below a directory for temporary files
		"UsePAM no",
		"UseDNS no",
		"MaxStartups 200",
		"LogLevel VERBOSE",
	)
	// since 9.8 it turns clients away that fail too often, as tests do; older ones do not know the option
	const penalties = "PerSourcePenalties no"
	if exec.CommandContext(ctx, h.sshd, "-t", "-f", os.DevNull, "-h", h.path("host_key"), "-o", penalties).Run() == nil {
		lines = append(lines, penalties)
	}
	return strings.Join(lines, "\n") + "\n"
}
