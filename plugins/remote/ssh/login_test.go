// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"
)

func TestDial_MistakeIsOneSentence(t *testing.T) {
	testsupport.NeedRoot(t) // a file belongs to another user
	server := sshdtest.Start(t)
	otherFile, other := newKey(t)
	ecdsaKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	otherKind, err := ssh.NewPublicKey(&ecdsaKey.PublicKey)
	must.NoError(t, err)
	content, err := os.ReadFile(server.KeyFile)
	must.NoError(t, err)
	readable := write(t, string(content))
	must.NoError(t, os.Chmod(readable, 0o640))
	foreign := write(t, string(content))
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
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	must.NoError(t, free.Close())
	known := func(address string, key ssh.PublicKey) string {
		return write(t, "# comment\n"+knownhosts.Line([]string{address}, key)+"\n")
	}
	authority := write(t, "@cert-authority * "+line(other)+"\n")

	for name, c := range map[string]struct {
		edit func(*Config)
		want string // a regular expression
	}{
		"not checked": {func(c *Config) { c.Host = "" }, `^host is missing$`},

		"host key changed": {func(c *Config) { c.HostKeys = []string{line(other)} },
			`^the host key of \S+:\d+ has changed: the host has ssh-ed25519 SHA256:\S+, but line 1 of host_keys has ssh-ed25519 SHA256:`},
		"host key of another kind": {func(c *Config) { c.HostKeys = []string{line(otherKind)} },
			`^the host key of 127.0.0.1:\d+ has changed, or the known keys are of other kinds: .* offered: \[ecdsa-sha2-nistp256`},
		"host key unknown": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, known("gpu1", other) },
			`^the host key of 127.0.0.1:\d+ is not known: the host has ssh-ed25519 SHA256:\S+, so add "\[127.0.0.1\]:\d+ ssh-ed2`},
		"host key changed in known_hosts": {func(c *Config) {
			c.HostKeys, c.KnownHostsFile = nil, known(server.Address(), other)
		}, `^the host key of \S+ has changed: the host has ssh-ed25519 SHA256:\S+, but line 2 of \S+ has ssh-ed25519 SHA`},
		"host key of another kind in known_hosts": {func(c *Config) {
			c.HostKeys, c.KnownHostsFile = nil, known(server.Address(), otherKind)
		}, `^the host key of \S+ has changed, or the known keys are of other kinds: .* offered: \[ecdsa-sha2-nistp256`},
		"host key revoked": {func(c *Config) {
			c.HostKeys, c.KnownHostsFile = nil, write(t, "@revoked * "+server.HostKey+"\n")
		}, `^127.0.0.1:\d+ has ssh-ed25519 SHA256:\S+, which \S+ does not allow`},
		"no host key file": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, "/no/file" },
			`^failed to open the known_hosts file: open /no/file`},
		"host key file is a FIFO": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, fifo },
			`^the known_hosts file \S+ is not a regular file$`},
		"host key file open": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, writable },
			`^the known_hosts file \S+ is accessible to other users \(mode 0620\): chmod go-w it$`},
		"host key file foreign": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, foreign },
			`^the known_hosts file \S+ belongs to user id 4711: it must belong to this user or root$`},
		"host key file damaged": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, write(t, "gpu1\n") },
			`^knownhosts: /\S+/file:1: `},
		"no host certificate": {func(c *Config) { c.HostKeys, c.KnownHostsFile = nil, authority },
			`^the host key of 127.0.0.1:\d+ is not known: `},

		"wrong user": {func(c *Config) { c.User = "nobody9" },
			`refuses user nobody9 with the key of \S+ \(ssh-ed25519 SHA256:\S+\): there is no such user, or`},
		"wrong key":     {func(c *Config) { c.KeyFile = otherFile }, `refuses user \S+ with the key of `},
		"key missing":   {func(c *Config) { c.KeyFile = "/no/key" }, `^failed to open the key: open /no/key: `},
		"key open":      {func(c *Config) { c.KeyFile = readable }, `other users \(mode 0640\): chmod 600 it$`},
		"key foreign":   {func(c *Config) { c.KeyFile = foreign }, `belongs to user id 4711: it must belong`},
		"key locked":    {func(c *Config) { c.KeyFile = locked }, `is not a private key without a passphrase: .*passphrase protected`},
		"key is a dir":  {func(c *Config) { c.KeyFile = "/etc" }, `^the key /etc is not a regular file$`},
		"key is no key": {func(c *Config) { c.KeyFile = write(t, "hello") }, `is not a private key without a passphrase: `},
		"no agent": {func(c *Config) { c.KeyFile, c.AgentSocket = "", "/no/agent" },
			`^failed to connect to the ssh-agent: dial unix /no/agent`},

		"nothing listens": {func(c *Config) { c.Port = free.Addr().(*net.TCPAddr).Port }, `^no SSH server listens at 127.0.0.1:\d+: `},
		"no such name": {func(c *Config) { c.Host = "no-such-host.invalid" },
			`^failed to look up the name no-such-host.invalid: `},
	} {
		t.Run(name, func(t *testing.T) {
			config := configOf(server)
			c.edit(&config)
			_, err := Dial(t.Context(), config)
			must.Error(t, err)
			test.RegexMatch(t, regexp.MustCompile(c.want), err.Error())
			test.StrNotContains(t, err.Error(), "\n")
		})
	}
}

func TestDial_ServerThatTakesNoKeysIsOneSentence(t *testing.T) {
	server := sshdtest.Start(t, sshdtest.Config("AuthenticationMethods any", "PubkeyAuthentication no"))
	_, err := Dial(t.Context(), configOf(server))
	must.ErrorContains(t, err, "refuses user ")
}

func TestDial_EndsWithTheContext(t *testing.T) {
	link := sshdtest.Start(t).Link()
	link.Cut()
	_, public := newKey(t)
	file, _ := newKey(t)
	config := Config{Host: "127.0.0.1", Port: link.Port, KeyFile: file, HostKeys: []string{line(public)}}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err := Dial(ctx, config)
	must.ErrorIs(t, err, context.Canceled)

	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts and sends nothing
	must.NoError(t, err)
	defer silent.Close()
	config.Port = silent.Addr().(*net.TCPAddr).Port
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = Dial(ctx, config)
	must.ErrorIs(t, err, context.DeadlineExceeded)
	must.ErrorContains(t, err, "the SSH server at "+config.address()+" did not complete the log-in of ")

	// also if a jump host is stuck
	server := sshdtest.Start(t)
	way := server.Link()
	jump := configOf(server)
	jump.Port = way.Port
	config = configOf(server)
	config.Jump = &jump
	conn := dial(t, config)
	way.Cut()
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_, err = conn.Run(ctx, nil, "true")
	must.ErrorIs(t, err, context.DeadlineExceeded)
	must.Less(t, defaultSilence/2, time.Since(begun))
}

func TestDial_SendsNothingToAHostThatIsNotTrusted(t *testing.T) {
	server := sshdtest.Start(t, sshdtest.Config("LogLevel DEBUG"))
	log := func() string {
		content, err := os.ReadFile(filepath.Join(server.Dir, "log"))
		must.NoError(t, err)
		return string(content)
	}
	must.NoError(t, dial(t, configOf(server)).Close())
	must.StrContains(t, log(), "userauth-request")
	must.NoError(t, os.Truncate(filepath.Join(server.Dir, "log"), 0))

	trusted := server.HostKey
	server.ChangeHostKey()
	server.Restart()
	c := configOf(server)
	c.HostKeys = []string{trusted}
	_, err := Dial(t.Context(), c)
	must.ErrorContains(t, err, "has changed: ")
	server.Stop() // and so it has written its log
	must.StrContains(t, log(), "Connection from ")
	must.StrNotContains(t, log(), "userauth-request")
}

func TestDial_ByKnownHosts(t *testing.T) {
	server := sshdtest.Start(t)
	// a second key, which the server prefers to prove
	rsa := filepath.Join(t.TempDir(), "rsa")
	out, err := exec.Command("ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", rsa).CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	second := sshdtest.Start(t, sshdtest.Config("HostKey "+rsa))
	rsaLine, err := os.ReadFile(rsa + ".pub")
	must.NoError(t, err)

	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(server.HostKey))
	must.NoError(t, err)
	_, other := newKey(t)
	for name, c := range map[string]struct {
		server  *sshdtest.Server
		content string
	}{
		"plain":  {server, knownhosts.Line([]string{server.Address()}, key)},
		"hashed": {server, knownhosts.HashHostname(knownhosts.Normalize(server.Address())) + " " + server.HostKey},
		"several": {server, knownhosts.Line([]string{"gpu1"}, other) + "\n" +
			knownhosts.Line([]string{server.Address()}, other) + "\n" + knownhosts.Line([]string{server.Address()}, key)},
		"with an authority": {server, "@cert-authority * " + line(other) + "\n" +
			knownhosts.Line([]string{server.Address()}, key)},
		"one of two":     {second, knownhosts.Normalize(second.Address()) + " " + second.HostKey},
		"the RSA of two": {second, knownhosts.Normalize(second.Address()) + " " + string(rsaLine)},
	} {
		config := configOf(c.server)
		config.HostKeys, config.KnownHostsFile = nil, write(t, c.content+"\n")
		conn, err := Dial(t.Context(), config)
		must.NoError(t, err, must.Sprint(name))
		must.NoError(t, conn.Close())
	}
}

// The authority's key is of another kind than those of the hosts.
func TestDial_ByAnAuthorityOfKnownHosts(t *testing.T) {
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	authority, err := ssh.NewSignerFromKey(secret)
	must.NoError(t, err)
	certificate := filepath.Join(t.TempDir(), "certificate")
	server := sshdtest.Start(t, sshdtest.Config("HostCertificate "+certificate))
	certify := func(principal string) {
		key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(server.HostKey))
		must.NoError(t, err)
		cert := &ssh.Certificate{Key: key, CertType: ssh.HostCert, ValidPrincipals: []string{principal},
			ValidBefore: ssh.CertTimeInfinity}
		must.NoError(t, cert.SignCert(rand.Reader, authority))
		must.NoError(t, os.WriteFile(certificate, ssh.MarshalAuthorizedKey(cert), 0o644))
		server.Restart()
	}
	known := func(key ssh.PublicKey) Config {
		c := configOf(server)
		pattern := knownhosts.Normalize(server.Address())
		c.HostKeys, c.KnownHostsFile = nil, write(t, "@cert-authority "+pattern+" "+line(key)+"\n")
		return c
	}
	_, other := newKey(t)

	certify("127.0.0.1")
	dial(t, known(authority.PublicKey()))
	_, err = Dial(t.Context(), known(other))
	test.ErrorContains(t, err, "does not allow: ssh: no authorities for hostname: 127.0.0.1:")

	certify("gpu2")
	_, err = Dial(t.Context(), known(authority.PublicKey()))
	test.ErrorContains(t, err, `principal "127.0.0.1" not in the set of valid principals`)
}

func TestDial_ByAgent(t *testing.T) {
	server := sshdtest.Start(t)
	socket := filepath.Join(t.TempDir(), "agent")
	agent := exec.Command("ssh-agent", "-D", "-a", socket)
	must.NoError(t, agent.Start())
	defer agent.Wait()
	defer agent.Process.Kill()
	testsupport.Eventually(t, "the agent listens", func() bool { return testsupport.Exists(socket) })
	add := func(args ...string) {
		cmd := exec.Command("ssh-add", append([]string{"-q"}, args...)...)
		cmd.Env = append(os.Environ(), "SSH_AUTH_SOCK="+socket)
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprintf("%s", out))
	}
	c := configOf(server)
	c.KeyFile, c.AgentSocket = "", socket
	_, err := Dial(t.Context(), c)
	must.EqError(t, err, "failed to get a key from the ssh-agent at "+socket+": it has no key, so add one with ssh-add")

	add(server.KeyFile)
	before := testsupport.Descriptors(t)
	must.NoError(t, dial(t, c).Close())
	testsupport.Eventually(t, "the agent's descriptor is closed", func() bool {
		return testsupport.Descriptors(t) == before
	})

	add("-D")
	for range 10 {
		file, _ := newKey(t)
		add(file)
	}
	_, err = Dial(t.Context(), c)
	must.ErrorContains(t, err, "the ssh-agent at "+socket+", which has 10 (the server tries MaxAuthTries): there is no ")
}

func TestDial_ThroughAJumpHost(t *testing.T) {
	server := sshdtest.Start(t)
	way := sshdtest.Start(t)
	c := configOf(server)
	c.Jump = &Config{Host: way.Host, Port: way.Port, KeyFile: way.KeyFile, HostKeys: []string{way.HostKey}}
	before := testsupport.Descriptors(t)
	conn := dial(t, c)
	out, err := conn.Run(t.Context(), nil, "cat; echo $SSH_CONNECTION")
	must.NoError(t, err)
	must.StrContains(t, string(out), "127.0.0.1")

	way.Stop()
	<-conn.Done()
	_, err = conn.Run(t.Context(), nil, "true")
	must.ErrorContains(t, err, "the connection to "+conn.config.String()+" was lost: ")
	_, err = Dial(t.Context(), c)
	must.ErrorContains(t, err, "the jump host: no SSH server listens at ")
	way.Restart()
	must.NoError(t, dial(t, c).Close())
	must.Eq(t, before, testsupport.Descriptors(t))

	server.Stop()
	before = testsupport.Descriptors(t)
	_, err = Dial(t.Context(), c)
	must.ErrorContains(t, err, "failed to connect to "+server.Address()+", or ")
	c.Jump.KeyFile, _ = newKey(t)
	_, err = Dial(t.Context(), c)
	must.ErrorContains(t, err, "the jump host: the SSH server at "+way.Address()+" refuses user ")
	must.Eq(t, before, testsupport.Descriptors(t))
}

func TestDial_JumpHostMistakeIsOneSentence(t *testing.T) {
	server := sshdtest.Start(t)
	way := sshdtest.Start(t, sshdtest.Config("AllowTcpForwarding no"))
	c := configOf(server)
	c.Jump = &Config{Host: way.Host, Port: way.Port, KeyFile: way.KeyFile, HostKeys: []string{way.HostKey}}
	_, err := Dial(t.Context(), c)
	must.ErrorContains(t, err, "failed to connect to "+server.Address()+", or does not allow it (AllowTcpForwarding): ")
}
