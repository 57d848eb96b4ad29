// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"
)

func TestLogin_ErrorsAreOneSentence(t *testing.T) {
	testsupport.NeedRoot(t) // to create a file of another user
	server := sshdtest.Start(t)
	forwardsNothing := sshdtest.Start(t, sshdtest.Config("AllowTcpForwarding no"))
	otherFile, other := newKey(t)
	content, err := os.ReadFile(server.KeyFile)
	must.NoError(t, err)
	file := func(text string, mode os.FileMode, owner int) string {
		path := write(t, text)
		must.NoError(t, os.Chown(path, owner, owner))
		must.NoError(t, os.Chmod(path, mode))
		return path
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	must.NoError(t, free.Close())
	sum := strings.Fields(keygen(t, "-l", "-f", write(t, server.HostKey)))[1]

	key := func(path string) func(*Config) { return func(c *Config) { c.KeyFile = path } }
	lockedFile, _ := newKey(t, "-N", "secret")
	locked := key(lockedFile)
	hostKeys := func(lines ...string) func(*Config) { return func(c *Config) { c.HostKeys = lines } }
	closed := func(c *Config) { c.Port = free.Addr().(*net.TCPAddr).Port }
	jump := func(edit func(*Config, *Hop)) func(*Config) {
		return func(c *Config) {
			c.Jump = jumpOf(t, server, server)
			edit(c, c.Jump)
		}
	}
	address := regexp.QuoteMeta(server.Address())
	changed := `^the host key of \S+ is not in host_keys \(it is ` + regexp.QuoteMeta(sum) +
		`\): add it if the host was reinstalled; otherwise this may be another host$`
	refused := `^the SSH server at ` + address + ` refuses user \S+ with %s: the user does not exist, or its authorized_keys ` +
		`lacks the key, or the key has a passphrase$`
	_, rsa := newKey(t, "-t", "rsa")
	for name, c := range map[string]struct {
		edit  func(*Config)
		want  string // a regular expression
		place string // replaces %s in want, such as the path of the key
	}{
		"host key changed":       {hostKeys(other), changed, ""},
		"host key changed, kind": {hostKeys(rsa), changed, ""},

		"wrong user":   {func(c *Config) { c.User = "nobody9" }, refused, `/\S+`},
		"wrong key":    {key(otherFile), refused, regexp.QuoteMeta(otherFile)},
		"key missing":  {key("/no/key"), `^failed to check key_file: stat /no/key: `, ""},
		"key open":     {key(file(string(content), 0o640, 0)), `other users \(mode 0640\): chmod 600 it$`, ""},
		"key foreign":  {key(file(string(content), 0o600, 4711)), `belongs to user id 4711: chown it`, ""},
		"key is a dir": {key("/etc"), `^the key /etc is not a regular file$`, ""},
		"invalid key":  {key(write(t, "hello")), refused, `/\S+`},
		"key locked":   {locked, refused, `/\S+`},
		"no agent": {func(c *Config) { c.KeyFile, c.AgentSocket = "", "/no/agent" },
			`^failed to connect to the ssh-agent: dial unix /no/agent: `, ""},

		"nothing listens": {closed, `^failed to connect to \S+: ssh: connect to host 127.0.0.1 port \d+: ` +
			`Connection refused$`, ""},
		"no such name": {func(c *Config) { c.Host = "no-such-host.invalid" },
			`^failed to connect to \S+@no-such-host.invalid:\d+: ssh: Could not resolve hostname `, ""},

		"jump host: nothing listens": {jump(func(_ *Config, j *Hop) { j.Port = free.Addr().(*net.TCPAddr).Port }), `^failed to use the jump host: failed to connect to `, ""},
		"jump host: host key":        {jump(func(_ *Config, j *Hop) { j.HostKeys = []string{other} }), `^failed to use the jump host: the host key of \S+ is not in host_keys \(it is SHA256:`, ""},
		"jump host: key":             {jump(func(c *Config, _ *Hop) { c.KeyFile = otherFile }), `^failed to use the jump host: the SSH server at \S+ refuses `, ""},
		"jump host: no forwarding": {func(c *Config) { c.Jump = jumpOf(t, forwardsNothing, server) },
			`^the jump host \S+ failed to connect to ` + address + `, or does not allow forwarding \(AllowTcpForwarding\)$`, ""},
		"behind the jump host: host key": {func(c *Config) {
			c.Jump, c.HostKeys = jumpOf(t, server, server), []string{other}
		}, changed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			config := configOf(server)
			c.edit(&config)
			_, err := run(t, config, "", "true")
			must.Error(t, err)
			test.RegexMatch(t, regexp.MustCompile(strings.ReplaceAll(c.want, "%s", c.place)), err.Error())
			test.StrNotContains(t, err.Error(), "\n")
		})
	}
	t.Run("no ssh", func(t *testing.T) {
		t.Setenv("PATH", "/no/path")
		_, err := run(t, configOf(server), "", "true")
		must.ErrorContains(t, err, "found no ssh program on this node: install openssh-client (")
	})
}

func TestLogin_SendsNothingToAnUntrustedHost(t *testing.T) {
	server := sshdtest.Start(t, sshdtest.Config("LogLevel DEBUG"))
	log := func() string {
		content, err := os.ReadFile(filepath.Join(server.Dir, "log"))
		must.NoError(t, err)
		return string(content)
	}
	works(t, configOf(server), "")
	must.StrContains(t, log(), "userauth-request")
	must.NoError(t, os.Truncate(filepath.Join(server.Dir, "log"), 0))

	c := configOf(server)
	must.NoError(t, os.Remove(filepath.Join(server.Dir, "host_key"))) // Restart makes a new one
	server.Restart()
	_, err := run(t, c, "", "true")
	must.ErrorContains(t, err, "the host key of "+c.address()+" is not in host_keys (it is SHA256:")
	server.Stop() // waits until the server has written its log
	must.StrContains(t, log(), "Connection from ")
	must.StrNotContains(t, log(), "userauth-request")
}

func TestLogin_AcceptsAnyOfSeveralHostKeys(t *testing.T) {
	rsaFile, rsa := newKey(t, "-t", "rsa") // a second host key of the server
	server := sshdtest.Start(t, sshdtest.Config("HostKey "+rsaFile))
	_, other := newKey(t)
	for note, keys := range map[string][]string{
		"several keys": {other, server.HostKey},
		"the second":   {rsa},
	} {
		config := configOf(server)
		config.HostKeys = keys
		works(t, config, note)
	}
}

func TestLogin_UsesTheSSHAgent(t *testing.T) {
	server := sshdtest.Start(t)
	socket := filepath.Join(t.TempDir(), "agent")
	agent := exec.Command("ssh-agent", "-D", "-a", socket)
	must.NoError(t, agent.Start())
	defer agent.Wait()
	defer agent.Process.Kill()
	testsupport.Eventually(t, "the agent listens", func() bool { // it listens shortly after it has created the socket
		c, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}
		return c.Close() == nil
	})
	add := func(args ...string) {
		cmd := exec.Command("ssh-add", append([]string{"-q"}, args...)...)
		cmd.Env = append(os.Environ(), "SSH_AUTH_SOCK="+socket)
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprintf("%s", out))
	}
	c := configOf(server)
	c.KeyFile, c.AgentSocket = "", socket
	add(server.KeyFile)
	works(t, c, "")

	// ssh must not use an agent that is set only in the environment
	t.Setenv("SSH_AUTH_SOCK", socket)
	byFile := configOf(server)
	byFile.KeyFile, _ = newKey(t)
	_, err := run(t, byFile, "", "true")
	must.ErrorContains(t, err, " refuses user ")

	add("-D")
	for range 10 {
		file, _ := newKey(t)
		add(file)
	}
	_, err = run(t, c, "", "true")
	must.ErrorContains(t, err, " with the keys of the ssh-agent at "+socket+": ")
}

func TestLogin_GoesThroughAJumpHost(t *testing.T) {
	server, way := sshdtest.Start(t), sshdtest.Start(t)
	c := configOf(server)
	c.Jump = jumpOf(t, way, server)
	program, err := c.Start(t.Context(), "cat")
	must.NoError(t, err)
	defer program.Close()
	way.Stop()
	_, err = program.Read(make([]byte, 1))
	must.ErrorContains(t, err, "the connection to "+c.String()+" was lost: ")
}
