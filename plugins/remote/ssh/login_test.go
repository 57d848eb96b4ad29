// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/plugins/remote/simulate"
	"github.com/outrider-dev/outrider/plugins/remote/simulate/simulatetest"
)

func TestConnect_MistakeIsOneSentence(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{Config: []string{"LoginGraceTime 60"}})
	otherFile, other := newKey(t)
	ecdsaKey, err := ecdsa.GenerateKey(elliptic.P256(), nil)
	must.NoError(t, err)
	otherKind, err := ssh.NewPublicKey(&ecdsaKey.PublicKey)
	must.NoError(t, err)
	open, err := os.ReadFile(h.KeyFile)
	must.NoError(t, err)
	readable := write(t, string(open))
	must.NoError(t, os.Chmod(readable, 0o640))
	foreign := write(t, string(open))
	must.NoError(t, os.Chown(foreign, 4711, 4711))
	writable := write(t, "")
	must.NoError(t, os.Chmod(writable, 0o620))
	fifo := filepath.Join(t.TempDir(), "fifo")
	must.NoError(t, unix.Mkfifo(fifo, 0o600))
	_, secret, err := ed25519.GenerateKey(nil)
	must.NoError(t, err)
	block, err := ssh.MarshalPrivateKeyWithPassphrase(secret, "", []byte("secret"))
	must.NoError(t, err)
	locked := write(t, string(pem.EncodeToMemory(block)))
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	must.NoError(t, err)
	defer silent.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	must.NoError(t, free.Close())
	port := func(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }
	known := func(address string, key ssh.PublicKey) string {
		return write(t, "# comment\n"+knownhosts.Line([]string{address}, key)+"\n")
	}

	for name, c := range map[string]struct {
		edit func(*Config)
		want string // a regular expression
		is   error
	}{
		"host key changed": {func(c *Config) { c.HostKeys = []string{line(other)} },
			`^the host key of 127.0.0.1:\d+ has changed: it has ssh-ed25519 SHA256:\S+, and host_keys has ssh-ed25519 SHA256:`,
			ErrHostKey},
		"host key of another kind": {func(c *Config) { c.HostKeys = []string{line(otherKind)} },
			`^the host key of 127.0.0.1:\d+ has changed: it has none of ecdsa-sha2-nistp256 any more`, ErrHostKey},
		"host key unknown": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, known("gpu1", other) },
			`^the host key of 127.0.0.1:\d+ is not known: it has ssh-ed25519 SHA256:\S+, so add "\[127.0.0.1\]:\d+ ssh-ed2`,
			ErrHostKey},
		"host key changed in known_hosts": {func(c *Config) {
			c.HostKeys, c.KnownHostsFile = nil, known(h.HostPort(), other)
		}, `^the host key of 127.0.0.1:\d+ has changed: it has ssh-ed25519 SHA256:\S+, and line 2 of \S+ has ssh-ed25519 SHA`,
			ErrHostKey},
		"host key revoked": {func(c *Config) {
			c.HostKeys, c.KnownHostsFile = nil, write(t, "@revoked * "+h.HostKey+"\n")
		}, `^127.0.0.1:\d+ has ssh-ed25519 SHA256:\S+, which \S+ does not allow`, ErrHostKey},
		"no host key": {func(c *Config) { c.HostKeys = nil }, `^no key of 127.0.0.1:\d+ is given: set host_keys`, nil},
		"no host key file": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, "/no/file" },
			`^the known_hosts file can't be read: open /no/file`, nil},
		"host key file is a FIFO": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, fifo },
			`^the known_hosts file \S+ is not a file$`, nil},
		"host key file open": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, writable },
			`^the known_hosts file \S+ is open to others \(mode 0620\): chmod go-w it$`, nil},
		"host key file foreign": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, foreign },
			`^the known_hosts file \S+ belongs to user id 4711: it must be this user's, or root's$`, nil},
		"host key file damaged": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, write(t, "gpu1\n") },
			`^the known_hosts file can't be read: knownhosts: /\S+/file:1: `, nil},
		"no host certificate": {func(c *Config) {
			c.HostKeys, c.KnownHostsFile = nil, write(t, "@cert-authority * "+line(other)+"\n")
		}, `^the SSH server at 127.0.0.1:\d+ has no host certificate \(HostCertificate\), and no key that \S+ has: `, ErrHostKey},
		"host key that is none": {func(c *Config) { c.HostKeys = []string{"key"} }, `^host_keys has "key", which is no`, nil},

		"wrong user": {func(c *Config) { c.User = "nobody9" },
			`refuses user nobody9 with the key of \S+ \(ssh-ed25519 SHA256:\S+\): there is no such user, or`, ErrRefused},
		"wrong key":     {func(c *Config) { c.KeyFile = otherFile }, `refuses user remote with the key of `, ErrRefused},
		"key missing":   {func(c *Config) { c.KeyFile = "/no/key" }, `^the key can't be read: open /no/key: `, nil},
		"key open":      {func(c *Config) { c.KeyFile = readable }, `is open to others \(mode 0640\): chmod 600 it$`, nil},
		"key foreign":   {func(c *Config) { c.KeyFile = foreign }, `belongs to user id 4711: it must be this user's`, nil},
		"key locked":    {func(c *Config) { c.KeyFile = locked }, `has a passphrase: use one without, or an ssh-agent$`, nil},
		"key is a dir":  {func(c *Config) { c.KeyFile = "/etc" }, `^the key /etc is not a file$`, nil},
		"key is no key": {func(c *Config) { c.KeyFile = write(t, "hello") }, `is no private key that can be used`, nil},
		"no key":        {func(c *Config) { c.KeyFile = "" }, `^there is no key to log in with: set key_file`, nil},
		"no agent": {func(c *Config) { c.KeyFile, c.AgentSocket = "", "/no/agent" },
			`^the ssh-agent can't be reached: dial unix /no/agent`, nil},

		"nothing listens": {func(c *Config) { c.Port = port(free) }, `^no SSH server listens at 127.0.0.1:\d+: `, nil},
		"no such name": {func(c *Config) { c.Host = "no-such-host.invalid" },
			`^(there is no host of the name|the name) no-such-host.invalid`, nil},
		"silent server": {func(c *Config) { c.Port, c.Timeout = port(silent), 300*time.Millisecond },
			`^the SSH server at 127.0.0.1:\d+ did not let remote in within 300ms: `, nil},
	} {
		t.Run(name, func(t *testing.T) {
			config := configOf(h)
			c.edit(&config)
			err := newClient(t, config).Connect(t.Context())
			must.Error(t, err)
			test.RegexMatch(t, regexp.MustCompile(c.want), err.Error())
			if c.is != nil {
				test.ErrorIs(t, err, c.is)
			}
		})
	}
}

func TestConnect_SendsNothingToAHostThatIsNotTrusted(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{Config: []string{"LogLevel DEBUG"}})
	_, other := newKey(t)
	c := configOf(h)
	c.HostKeys = []string{line(other)}
	must.ErrorIs(t, newClient(t, c).Connect(t.Context()), ErrHostKey)
	log, err := os.ReadFile(h.Log())
	must.NoError(t, err)
	test.StrNotContains(t, string(log), "userauth-request")
	must.NoError(t, newClient(t, configOf(h)).Connect(t.Context()))
	log, err = os.ReadFile(h.Log())
	must.NoError(t, err)
	test.StrContains(t, string(log), "userauth-request")
}

func TestConnect_ByKnownHosts(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{})
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(h.HostKey))
	must.NoError(t, err)
	_, other := newKey(t)
	for name, content := range map[string]string{
		"plain":  knownhosts.Line([]string{h.HostPort()}, key),
		"hashed": knownhosts.HashHostname(knownhosts.Normalize(h.HostPort())) + " " + h.HostKey,
		"several": knownhosts.Line([]string{"gpu1"}, other) + "\n" + knownhosts.Line([]string{h.HostPort()}, other) + "\n" +
			knownhosts.Line([]string{h.HostPort()}, key),
	} {
		c := configOf(h)
		c.HostKeys, c.KnownHostsFile = nil, write(t, content+"\n")
		test.NoError(t, newClient(t, c).Connect(t.Context()), test.Sprint(name))
	}
}

// The authority's key is of another kind than those of the hosts.
func TestConnect_ByAnAuthorityOfKnownHosts(t *testing.T) {
	ca, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	authority, err := ssh.NewSignerFromKey(ca)
	must.NoError(t, err)
	config := func(principal string) Config {
		h := simulatetest.New(t, simulate.Options{Config: []string{"HostCertificate /home/root/host_cert"}})
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(h.HostKey))
		must.NoError(t, err)
		cert := &ssh.Certificate{Key: key, CertType: ssh.HostCert, ValidPrincipals: []string{principal},
			ValidBefore: ssh.CertTimeInfinity}
		must.NoError(t, cert.SignCert(rand.Reader, authority))
		must.NoError(t, os.WriteFile(h.Path("/home/root/host_cert"), ssh.MarshalAuthorizedKey(cert), 0o644))
		must.NoError(t, h.KillServer())
		must.NoError(t, h.StartServer(t.Context()))
		c := configOf(h)
		c.HostKeys = nil
		return c
	}
	known := "@cert-authority 127.0.0.* " + line(authority.PublicKey()) + "\n"
	_, other := newKey(t)

	c := config("127.0.0.1")
	c.KnownHostsFile = write(t, known)
	test.NoError(t, newClient(t, c).Connect(t.Context()))
	c.KnownHostsFile = write(t, "@cert-authority 127.0.0.* "+line(other)+"\n")
	err = newClient(t, c).Connect(t.Context())
	test.ErrorIs(t, err, ErrHostKey)
	test.ErrorContains(t, err, "does not allow (ssh: no authorities for hostname: 127.0.0.1:")

	c = config("gpu2")
	c.KnownHostsFile = write(t, known)
	err = newClient(t, c).Connect(t.Context())
	test.ErrorIs(t, err, ErrHostKey)
	test.ErrorContains(t, err, `principal "127.0.0.1" not in the set of valid principals`)
}

func TestConnect_ByAgent(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{})
	content, err := os.ReadFile(h.KeyFile)
	must.NoError(t, err)
	key, err := ssh.ParseRawPrivateKey(content)
	must.NoError(t, err)
	keyring := agent.NewKeyring()
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	must.NoError(t, err)
	defer l.Close()
	var open atomic.Int32
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			open.Add(1)
			go func() {
				_ = agent.ServeAgent(keyring, conn)
				open.Add(-1)
			}()
		}
	}()

	c := configOf(h)
	c.KeyFile, c.AgentSocket = "", socket
	must.ErrorContains(t, newClient(t, c).Connect(t.Context()), "the ssh-agent at "+socket+" is of no use: it has no key")
	must.NoError(t, keyring.Add(agent.AddedKey{PrivateKey: key}))
	must.NoError(t, newClient(t, c).Connect(t.Context()))
	must.NoError(t, keyring.RemoveAll())
	for range 10 {
		_, other, err := ed25519.GenerateKey(nil)
		must.NoError(t, err)
		must.NoError(t, keyring.Add(agent.AddedKey{PrivateKey: other}))
	}
	err = newClient(t, c).Connect(t.Context())
	must.ErrorIs(t, err, ErrRefused)
	must.ErrorContains(t, err, "offers more keys than it tries (MaxAuthTries), so use key_file")
	eventually(t, "the agent is left alone after the log-in", func() bool { return open.Load() == 0 })
}

func TestConnect_ThroughAJumpHost(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{})
	jump := simulatetest.New(t, simulate.Options{})
	otherFile, _ := newKey(t)
	c := configOf(h)
	c.Jump = &Config{Host: jump.Address, Port: jump.Port, KeyFile: jump.KeyFile, HostKeys: []string{jump.HostKey}}
	client := newClient(t, c)
	out, err := client.Run(t.Context(), nil, "echo $SSH_CONNECTION")
	must.NoError(t, err)
	must.StrContains(t, string(out), "127.0.0.1")

	must.NoError(t, jump.KillServer())
	eventually(t, "a host is not reached without the one on the way", func() bool {
		err := client.Connect(t.Context())
		return err != nil && strings.Contains(err.Error(), "the jump host: ")
	})
	must.NoError(t, jump.StartServer(t.Context()))
	eventually(t, "a host is reached again", func() bool { return client.Connect(t.Context()) == nil })

	c.Jump.KeyFile = otherFile
	err = newClient(t, c).Connect(t.Context())
	must.ErrorIs(t, err, ErrRefused)
	must.ErrorContains(t, err, "the jump host: ")
	c.Jump.KeyFile, c.Port = jump.KeyFile, 1
	must.ErrorContains(t, newClient(t, c).Connect(t.Context()), "nothing listens at 127.0.0.1:1 on 127.0.0.1")
}
