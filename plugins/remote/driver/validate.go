// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/remote/docker"
)

// mistakes are those of a block.
type mistakes struct{ schema.Problems }

// absolute checks options that are paths, given as name and value in turn.
func (m *mistakes) absolute(options ...string) {
	for o := range slices.Chunk(options, 2) {
		if o[1] != "" && !filepath.IsAbs(o[1]) {
			m.Addf("%s %q is not absolute: the agent's working directory is not known", o[0], o[1])
		}
	}
}

// A name of an endpoint is part of a node's attributes, where a dot would begin another one.
var endpointName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)

// Validate looks at no file and no host: an agent whose endpoints are away must start.
func (c Config) Validate() error {
	var m mistakes
	for _, name := range slices.Sorted(maps.Keys(c.Endpoints)) {
		if !endpointName.MatchString(name) {
			m.Addf("endpoint %q: its name is part of an attribute of the node: use at most 63 letters, digits, "+
				"\"-\" and \"_\"", name)
		}
	}
	return m.OrNil()
}

// Validate is part of a block endpoint.
func (e Endpoint) Validate() error {
	switch {
	case e.SSH == nil && e.Docker == nil:
		return errors.New("has neither a block ssh nor a block docker: write one of them")
	case e.SSH != nil && e.Docker != nil:
		return errors.New("has a block ssh and a block docker: leave one of them out, and make the other another endpoint")
	}
	return nil
}

// Validate is part of a block ssh.
func (s SSH) Validate() error {
	var m mistakes
	m.Add(s.Keys.check())
	m.Add(s.Jump.pins(s.Keys))
	m.absolute("state_dir", s.StateDir)
	return m.OrNil()
}

// Validate is part of a block docker.
func (d Docker) Validate() error {
	var m mistakes
	m.absolute("ca_file", d.CAFile, "cert_file", d.CertFile, "key_file", d.KeyFile)
	u, err := url.Parse(d.Host)
	if err != nil {
		m.Addf("host %q is not an address: %w", d.Host, errors.Unwrap(err))
		return m.OrNil()
	}
	switch u.Scheme {
	case "unix":
		if u.Host != "" || !path.IsAbs(u.Path) {
			m.Addf("host %q is not a path: write unix:///PATH", d.Host)
		}
	case "tcp":
		if u.Hostname() == "" || u.Port() == "" {
			m.Addf("host %q has no port: write tcp://HOST:PORT", d.Host)
		}
		if d.CAFile == "" || d.CertFile == "" || d.KeyFile == "" {
			m.Addf("host %q needs TLS, since who reaches an engine is root on its host: set ca_file, cert_file and key_file",
				d.Host)
		}
	case "ssh":
		if u.Hostname() == "" {
			m.Addf("host %q names no host: write ssh://USER@HOST:PORT/PATH", d.Host)
		}
		if n, err := strconv.ParseUint(cmp.Or(u.Port(), "22"), 10, 16); err != nil || n == 0 {
			m.Addf("host %q has no port from 1 to 65535", d.Host)
		}
		if _, hasPassword := u.User.Password(); hasPassword {
			m.Addf("host has a password: write ssh://USER@HOST:PORT/PATH, and use a key")
		}
		if d.SSH == nil {
			m.Addf("host %q needs the keys: write a block ssh", d.Host)
		}
	default:
		m.Addf("host %q is not known: use unix://PATH, tcp://HOST:PORT or ssh://USER@HOST:PORT/PATH", d.Host)
		return m.OrNil()
	}
	if u.Scheme != "tcp" && cmp.Or(d.CAFile, d.CertFile, d.KeyFile) != "" {
		m.Addf("ca_file, cert_file and key_file have no effect with host %q: leave them out", d.Host)
	}
	if u.Scheme != "ssh" && d.SSH != nil {
		m.Addf("the block ssh has no effect with host %q: leave it out", d.Host)
	}
	return m.OrNil()
}

// Validate is part of a block ssh in a block docker.
func (d DockerSSH) Validate() error {
	var m mistakes
	m.Add(d.Keys.check())
	m.Add(d.Jump.pins(d.Keys))
	return m.OrNil()
}

func (k Keys) check() error {
	var m mistakes
	m.absolute("key_file", k.KeyFile, "agent_socket", k.AgentSocket, "known_hosts_file", k.KnownHostsFile)
	switch {
	case k.KeyFile == "" && k.AgentSocket == "":
		m.Addf("has no key to log in with: set key_file or agent_socket")
	case k.KeyFile != "" && k.AgentSocket != "":
		m.Addf("has key_file and agent_socket: leave one of them out")
	}
	switch {
	case len(k.HostKeys) == 0 && k.KnownHostsFile == "":
		m.Addf("pins no host key: set host_keys to what ssh-keyscan prints for the host, and compare it with the files " +
			"/etc/ssh/ssh_host_*_key.pub there")
	case len(k.HostKeys) > 0 && k.KnownHostsFile != "":
		m.Addf("has host_keys and known_hosts_file: leave one of them out")
	}
	m.Add(checkHostKeys(k.HostKeys))
	return m.OrNil()
}

// pins is an error where neither a jump host's block nor that of the host behind it has its key.
func (j *Jump) pins(behind Keys) error {
	if j != nil && len(j.HostKeys) == 0 && j.KnownHostsFile == "" && behind.KnownHostsFile == "" {
		return errors.New("jump pins no host key: set host_keys or known_hosts_file there")
	}
	return nil
}

// Validate is part of a block jump.
func (j Jump) Validate() error {
	var m mistakes
	m.absolute("key_file", j.KeyFile, "known_hosts_file", j.KnownHostsFile)
	if len(j.HostKeys) > 0 && j.KnownHostsFile != "" {
		m.Addf("has host_keys and known_hosts_file: leave one of them out")
	}
	m.Add(checkHostKeys(j.HostKeys))
	return m.OrNil()
}

func checkHostKeys(keys []string) error {
	var m mistakes
	for i, k := range keys {
		if _, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(k)); err != nil || len(rest) > 0 {
			m.Addf("host_keys[%d] %q is not a public key: write its kind and the key, such as \"ssh-ed25519 AAAA…\"", i, k)
		}
	}
	return m.OrNil()
}

// Validate is part of a block api.
func (a API) Validate() error {
	var m mistakes
	m.absolute("token_file", a.TokenFile, "ca_file", a.CAFile, "cert_file", a.CertFile, "key_file", a.KeyFile)
	for _, address := range a.addresses() {
		u, err := url.Parse(address)
		switch {
		case err != nil || u.Host == "" && u.Path == "" || !slices.Contains([]string{"http", "https", "unix"}, u.Scheme):
			m.Addf("address %q is not one of an API: write for example \"http://127.0.0.1:4646\"", address)
		case u.User != nil:
			m.Addf("address of %s has a user or a password: Nomad knows tokens only", u.Host)
		}
	}
	if (a.CertFile == "") != (a.KeyFile == "") {
		m.Addf("cert_file and key_file belong together: set both, or none")
	}
	return m.OrNil()
}

func (a API) addresses() (all []string) {
	for address := range strings.SplitSeq(a.Address, ",") {
		if address = strings.TrimSpace(address); address != "" {
			all = append(all, address)
		}
	}
	return all
}

// Validate is about what is wrong on any endpoint; see fits for the rest.
func (t TaskConfig) Validate() error {
	var m mistakes
	labels := map[uint64]string{}
	for _, label := range slices.Sorted(maps.Keys(t.Ports)) {
		n, err := strconv.ParseUint(t.Ports[label], 10, 16)
		if err != nil || n == 0 {
			m.Addf("ports %s = %q is not a port: use 1 to 65535", label, t.Ports[label])
		} else if other, ok := labels[n]; ok {
			m.Addf("ports %s and %s are both %d: a port has one label", other, label, n)
		}
		labels[n] = label
	}
	for _, label := range slices.Sorted(maps.Keys(t.Publish)) {
		if _, err := strconv.ParseUint(t.Publish[label], 10, 16); err != nil {
			m.Addf("publish %s = %q is not a port: use 1 to 65535, or 0 for any", label, t.Publish[label])
		}
		if _, ok := t.Ports[label]; !ok {
			m.Addf("publish %s has no port of the program: set ports { %s = PORT }", label, label)
		}
	}
	return m.OrNil()
}

// Validate is part of a block kill.
func (k Kill) Validate() error {
	if unix.SignalNum(k.Signal) == 0 {
		return fmt.Errorf("signal %q is not known: use a name of signal(7), such as \"SIGTERM\"", k.Signal)
	}
	return nil
}

// Validate is part of a block resources.
func (r Resources) Validate() error {
	if r.CPU == "" {
		return nil
	}
	// written so that NaN is refused
	if n, err := strconv.ParseFloat(r.CPU, 64); err != nil || !(n >= 0.01 && n <= 1<<16) {
		return fmt.Errorf("cpu %q is not a number of cores: use for example \"0.5\" or \"2\"", r.CPU)
	}
	return nil
}

// Validate is part of a block mount.
func (mount Mount) Validate() error {
	var m mistakes
	if mount.Type == "bind" && !path.IsAbs(mount.Source) {
		m.Addf("source %q is not absolute: it is a directory of the engine's host", mount.Source)
	}
	if mount.Type == "volume" && strings.Contains(mount.Source, "/") {
		m.Addf("source %q is not a volume's name: for a directory use type = \"bind\"", mount.Source)
	}
	if !path.IsAbs(mount.Target) {
		m.Addf("target %q is not absolute: it is a path in the container", mount.Target)
	}
	m.Add(docker.CheckMount(mount.Target))
	return m.OrNil()
}

// fits returns the mistakes of a task for an endpoint, whose name and kind are in the sentences.
func (t TaskConfig) fits(name string, e Endpoint) error {
	var m mistakes
	set := func(kind string, options ...string) {
		for o := range slices.Chunk(options, 2) {
			if o[1] != "" {
				m.Addf("%s is an option for %s, and endpoint %q is %s: leave it out, or name another endpoint",
					o[0], kind, name, e.kind())
			}
		}
	}
	if e.SSH != nil {
		set("docker", "image", t.Image, "pull", given(t.Pull), "entrypoint", strings.Join(t.Entrypoint, " "),
			"network_mode", t.Network, "mount", many(len(t.Mounts)), "publish", many(len(t.Publish)))
		if t.Command == "" {
			m.Addf("command is missing: endpoint %q is ssh, which runs a program", name)
		}
		return m.OrNil()
	}
	if t.Command != "" {
		m.Addf("command is an option for ssh, and endpoint %q is docker: use entrypoint and args", name)
	}
	set("ssh", "kill_mode", given(t.KillMode))
	if t.Image == "" {
		m.Addf("image is missing: endpoint %q is docker, which runs an image", name)
	}
	if len(t.Publish) > 0 && (t.Network == "host" || t.Network == "none") {
		m.Addf("publish has no effect with network_mode %q: leave one of them out", t.Network)
	}
	if t.WorkDir != "" && !path.IsAbs(t.WorkDir) {
		m.Addf("work_dir %q is not absolute: on docker it is a path in the container", t.WorkDir)
	}
	return m.OrNil()
}

func (e Endpoint) kind() string {
	if e.SSH != nil {
		return "ssh"
	}
	return "docker"
}

func given(option *string) string {
	if option == nil {
		return ""
	}
	return *option
}

func many(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}
