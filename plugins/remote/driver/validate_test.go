// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/hcl"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// A public key that is nobody's.
const hostKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"

const (
	sshKeys  = `key_file = "/k", host_keys = ["` + hostKey + `"]`
	tlsFiles = `ca_file = "/ca", cert_file = "/c", key_file = "/k"`
)

// decodeConfig is a configuration as an agent reads it. In a row, "; " and ", " end a line.
func decodeConfig(t *testing.T, text string) (Config, error) {
	t.Helper()
	var body map[string]any
	text = strings.NewReplacer("; ", "\n", ", ", "\n", "{ ", "{\n", " }", "\n}").Replace(text)
	must.NoError(t, hcl.Decode(&body, text), must.Sprint(text))
	return schema.Of[Config]().DecodeAgent(body)
}

func ssh1(options string) string    { return `endpoint "a" { ssh { ` + options + ` } }` }
func docker1(options string) string { return `endpoint "a" { docker { ` + options + ` } }` }

func TestConfig_IsValid(t *testing.T) {
	for _, text := range []string{
		``,
		ssh1(`host = "h", ` + sshKeys),
		ssh1(`host = "h", agent_socket = "/run/agent", known_hosts_file = "/etc/ssh/ssh_known_hosts"`),
		ssh1(`host = "h", ` + sshKeys + `, jump { host = "j", known_hosts_file = "/etc/ssh/ssh_known_hosts" }`),
		ssh1(`host = "h", key_file = "/k", known_hosts_file = "/etc/ssh/ssh_known_hosts", jump { host = "j" }`),
		docker1(``),
		docker1(`host = "unix:///run/podman/podman.sock"`),
		docker1(`host = "tcp://10.0.0.1:2376", ` + tlsFiles),
		docker1(`host = "ssh://ci@build:2222/run/podman.sock", ssh { ` + sshKeys + ` }`),
		`api { address = "https://a:4646,https://b:4646", token_file = "/t" }`,
		`api { address = "" }`,
	} {
		_, err := decodeConfig(t, text)
		test.NoError(t, err, test.Sprint(text))
	}
}

func TestConfig_MistakeIsOneSentence(t *testing.T) {
	for _, row := range [][2]string{
		{`endpoint "a" {}`, `endpoint "a": has neither a block ssh nor a block docker: write one of them`},
		{
			`endpoint "a" { docker {}; ssh { host = "h", ` + sshKeys + ` } }`,
			`endpoint "a": has a block ssh and a block docker: leave one of them out, and make the other ` +
				`another endpoint`,
		},
		{
			`endpoint "a.b" { docker {} }`,
			`endpoint "a.b": its name is part of an attribute of the node: use at most 63 letters, digits, ` +
				`"-" and "_"`,
		},
		{`endpoint "a" { docker {}; max_tasks = -1 }`, `endpoint "a": max_tasks -1 is too small: use 0 or more`},
		{ssh1(sshKeys), `The argument "host" is required`},
		{ssh1(`host = "", ` + sshKeys), `endpoint "a": ssh.host is empty: it must be set`},
		{ssh1(`host = "h", port = 70000, ` + sshKeys), `endpoint "a": ssh.port 70000 is too large: use 1 to 65535`},
		{
			ssh1(`host = "h", host_keys = ["` + hostKey + `"]`),
			`endpoint "a": ssh: has no key to log in with: set key_file or agent_socket`,
		},
		{
			ssh1(`host = "h", agent_socket = "/s", ` + sshKeys),
			`endpoint "a": ssh: has key_file and agent_socket: leave one of them out`,
		},
		{
			ssh1(`host = "h", key_file = "/k"`),
			`endpoint "a": ssh: pins no host key: set host_keys to what ssh-keyscan prints for the host`,
		},
		{
			ssh1(`host = "h", known_hosts_file = "/f", ` + sshKeys),
			`endpoint "a": ssh: has host_keys and known_hosts_file`,
		},
		{
			ssh1(`host = "h", key_file = "/k", host_keys = ["h ssh-ed25519 x"]`),
			`endpoint "a": ssh: host_keys[0] "h ssh-ed25519 x" is not a public key: write its kind and the key`,
		},
		{
			ssh1(`host = "h", key_file = "id", host_keys = ["` + hostKey + `"]`),
			`endpoint "a": ssh: key_file "id" is not absolute`,
		},
		{ssh1(`host = "h", state_dir = "x", ` + sshKeys), `endpoint "a": ssh: state_dir "x" is not absolute`},
		{
			ssh1(`host = "h", ` + sshKeys + `, jump { host = "j" }`),
			`endpoint "a": ssh: jump pins no host key: set host_keys or known_hosts_file there`,
		},
		{
			docker1(`host = "ssh://h:99999", ssh { ` + sshKeys + ` }`),
			`endpoint "a": docker: host "ssh://h:99999" has no port from 1 to 65535`,
		},
		{
			ssh1(`host = "h", ` + sshKeys + `, jump { host = "j", key_file = "id", known_hosts_file = "/k" }`),
			`endpoint "a": ssh.jump: key_file "id" is not absolute`,
		},
		{docker1(`host = "build"`), `endpoint "a": docker: host "build" is not known: use unix://PATH`},
		{
			docker1(`host = "unix://run/docker.sock"`),
			`host "unix://run/docker.sock" is not a path: write unix:///PATH`,
		},
		{docker1(`host = "tcp://h", ` + tlsFiles), `host "tcp://h" has no port: write tcp://HOST:PORT`},
		{docker1(`host = "tcp://h:2375"`), `host "tcp://h:2375" needs TLS`},
		{docker1(`host = "ssh://h"`), `host "ssh://h" needs the keys: write a block ssh`},
		{docker1(`host = "ssh://a:b@h", ssh { ` + sshKeys + ` }`), `host has a password`},
		{docker1(`ssh { ` + sshKeys + ` }`), `the block ssh has no effect with host "unix:///var/run/docker.sock"`},
		{docker1(tlsFiles), `ca_file, cert_file and key_file have no effect with host "unix:///`},
		{docker1(`host = "ssh://h", ssh { key_file = "/k" }`), `endpoint "a": docker.ssh: pins no host key`},
		{`api { address = "nomad:4646" }`, `api: address "nomad:4646" is not one of an API`},
		{`api { address = "http://a:b@n:4646" }`, `api: address of n:4646 has a user or a password`},
		{`api { token_file = "t" }`, `api: token_file "t" is not absolute`},
		{`api { cert_file = "/c" }`, `api: cert_file and key_file belong together: set both, or none`},
		{`lease = "1s"`, `lease "1s" is too small: use "3s" to "10m"`},
	} {
		text, want := row[0], row[1]
		_, err := decodeConfig(t, text)
		test.StrContains(t, fmt.Sprint(err), want, test.Sprint(text))
		test.StrNotContains(t, fmt.Sprint(err), "; ", test.Sprintf("%s: more than one mistake", text))
	}
}

func TestConfig_AllMistakesAreReported(t *testing.T) {
	_, err := decodeConfig(t, `lease = "1s"; endpoint "a" {}; endpoint "b" { ssh { host = "h" } }; `+
		`api { token_file = "t" }`)
	var all schema.Problems
	must.True(t, errors.As(err, &all), must.Sprint(err))
	test.SliceLen(t, 5, all, test.Sprint(err))
}

func task1(edit func(*TaskConfig)) TaskConfig {
	c := schema.Of[TaskConfig]().Default()
	c.Endpoint = "a"
	edit(&c)
	return c
}

func TestTaskConfig_MistakeIsOneSentence(t *testing.T) {
	for _, row := range []struct {
		want string
		edit func(*TaskConfig)
	}{
		{`ports http = "web" is not a port: use 1 to 65535`, func(c *TaskConfig) {
			c.Ports = map[string]string{"http": "web"}
		}},
		{`ports http = "0" is not a port: use 1 to 65535`, func(c *TaskConfig) {
			c.Ports = map[string]string{"http": "0"}
		}},
		{"ports http and web are both 80: a port has one label", func(c *TaskConfig) {
			c.Ports = map[string]string{"http": "80", "web": "80"}
		}},
		{`publish http has no port of the program: set ports {`, func(c *TaskConfig) {
			c.Publish = map[string]string{"http": "0"}
		}},
		{`publish http = "70000" is not a port`, func(c *TaskConfig) {
			c.Ports, c.Publish = map[string]string{"http": "80"}, map[string]string{"http": "70000"}
		}},
		{`kill: signal "SIGFOO" is not known`, func(c *TaskConfig) { c.Kill.Signal = "SIGFOO" }},
		{`resources: cpu "many" is not a number of`, func(c *TaskConfig) { c.Resources.CPU = "many" }},
		{`resources: cpu "NaN" is not a number of`, func(c *TaskConfig) { c.Resources.CPU = "NaN" }},
		{`kill_mode "all of them" is not known`, func(c *TaskConfig) { c.KillMode = new("all of them") }},
		{`endpoint is empty: it must be set`, func(c *TaskConfig) { c.Endpoint = "" }},
		{`mount[0]: source "x" is not absolute`, func(c *TaskConfig) {
			c.Mounts = []Mount{{"bind", "x", "/x", false}}
		}},
		{`mount[0]: target "x" is not absolute`, func(c *TaskConfig) {
			c.Mounts = []Mount{{"volume", "x", "x", false}}
		}},
		{`mount[0]: source "/x" is not a volume's`, func(c *TaskConfig) {
			c.Mounts = []Mount{{"volume", "/x", "/x", false}}
		}},
		{`mount[0]: target "/alloc/../local/" holds a directory that the task's files are copied to`, func(c *TaskConfig) {
			c.Mounts = []Mount{{"bind", "/x", "/alloc/../local/", true}}
		}},
		{`mount[0]: target "/" holds`, func(c *TaskConfig) { c.Mounts = []Mount{{"volume", "x", "/", false}} }},
		{`on_drain "keep" is not known: use "rele`, func(c *TaskConfig) { c.OnDrain = "keep" }},
	} {
		c, want := task1(row.edit), row.want
		err := schema.Of[TaskConfig]().Validate(&c)
		test.StrContains(t, fmt.Sprint(err), want)
		test.StrNotContains(t, fmt.Sprint(err), "; ", test.Sprint("more than one mistake"))
	}
}

func TestTaskConfig_HasOptionsOfItsEndpoint(t *testing.T) {
	ssh, docker := Endpoint{SSH: &SSH{}}, Endpoint{Docker: &Docker{}}
	for i, row := range []struct {
		on   Endpoint
		edit func(*TaskConfig)
		want string
	}{
		{ssh, func(c *TaskConfig) { c.Command = "x" }, ""},
		{docker, func(c *TaskConfig) { c.Image = "x" }, ""},
		{ssh, func(*TaskConfig) {}, `command is missing: endpoint "a" is ssh, which runs a program`},
		{docker, func(*TaskConfig) {}, `image is missing: endpoint "a" is docker, which runs an image`},
		{ssh, func(c *TaskConfig) { c.Command, c.Image = "x", "y" }, `image is an option for docker, and endpoint "a" is ` +
			`ssh: leave it out, or name another endpoint`},
		{ssh, func(c *TaskConfig) { c.Command, c.Pull = "x", new("never") }, `pull is an option for docker`},
		{ssh, func(c *TaskConfig) { c.Command, c.Entrypoint = "x", []string{"y"} }, `entrypoint is an option for docker`},
		{ssh, func(c *TaskConfig) { c.Command, c.Network = "x", "host" }, `network_mode is an option for docker`},
		{ssh, func(c *TaskConfig) { c.Command, c.Mounts = "x", []Mount{{}} }, `mount is an option for docker`},
		{docker, func(c *TaskConfig) { c.Command, c.Image = "x", "y" }, `command is an option for ssh, and endpoint "a" is ` +
			`docker: use entrypoint and args`},
		{docker, func(c *TaskConfig) { c.Image, c.KillMode = "x", new("all") }, `kill_mode is an option for ssh`},
		{docker, func(c *TaskConfig) { c.Image, c.Network = "x", "host" }, ""},
		{docker, func(c *TaskConfig) { c.Image, c.Network, c.Publish = "x", "none", map[string]string{"a": "1"} },
			`publish has no effect with network_mode "none"`},
		{docker, func(c *TaskConfig) { c.Image, c.WorkDir = "x", "y" }, `work_dir "y" is not absolute`},
	} {
		err := task1(row.edit).fits("a", row.on)
		test.Eq(t, row.want == "", err == nil, test.Sprintf("row %d: %v", i, err))
		test.StrContains(t, fmt.Sprint(err), row.want, test.Sprintf("row %d", i))
	}
}
