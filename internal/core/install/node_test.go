// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// apiVar is the API version of the plugin that this test binary is too.
const apiVar = "OUTRIDER_INSTALL_TEST_API"

// waitVar makes this test binary a program that runs until its input ends.
const waitVar = "OUTRIDER_INSTALL_TEST_WAIT"

func TestMain(m *testing.M) {
	if os.Getenv(waitVar) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	if os.Getenv(base.Handshake.MagicCookieKey) == "" {
		os.Exit(m.Run())
	}
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: base.Handshake, GRPCServer: goplugin.DefaultGRPCServer,
		Plugins: map[string]goplugin.Plugin{base.PluginTypeBase: &base.PluginBase{Impl: stub{}}},
	})
}

type stubConfig struct {
	Greeting string `codec:"greeting" default:"hello" doc:"What it says."`
}

var stubSchema = schema.Of[stubConfig]()

type stub struct{}

func (stub) PluginInfo() (*base.PluginInfoResponse, error) {
	api := drivers.ApiVersion010
	if other := os.Getenv(apiVar); other != "" {
		api = other
	}
	return &base.PluginInfoResponse{
		Type: base.PluginTypeDriver, Name: "stub", PluginVersion: "1.2.3", PluginApiVersions: []string{api},
	}, nil
}

func (stub) ConfigSchema() (*hclspec.Spec, error) { return stubSchema.Spec(), nil }

func (stub) SetConfig(c *base.Config) error {
	config, err := stubSchema.Decode(c.PluginConfig)
	if err == nil && config.Greeting == "" {
		err = errors.New("greeting is empty")
	}
	return err
}

const (
	binary = "nomad-driver-stub"
	block  = "plugin \"nomad-driver-stub\" {\n  config {\n    # What it says.\n    # greeting = \"hello\"\n  }\n}\n"
)

// node is a machine in a directory.
type node struct {
	t *testing.T
	machine
	plugin Plugin
	dir    string
}

// newNode is a machine with Nomad's package, on which no agent runs.
func newNode(t *testing.T) *node {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must.NoError(t, err)
	exe, err := os.Executable()
	must.NoError(t, err)
	sockets, err := os.MkdirTemp("", "oi") // a socket's path has at most 107 bytes (unix(7))
	must.NoError(t, err)
	t.Setenv("TMPDIR", sockets)
	t.Cleanup(func() { must.NoError(t, os.Remove(sockets), must.Sprint("something is left in it")) })
	n := &node{t: t, dir: dir, plugin: Plugin{Binary: binary, Block: block}}
	n.machine = machine{
		exe: exe, proc: n.path("proc"), usualConfig: n.path("etc"), usualData: n.path("data"),
		units: []string{n.path("nomad.service")},
	}
	n.link("mnt:[1]", "proc/self/ns/mnt")
	n.write("etc/nomad.hcl", fmt.Sprintf("data_dir = %q\nserver {\n  enabled = true\n}\n", n.path("data")))
	must.NoError(t, os.Mkdir(n.path("data"), 0o755))
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) write(name, text string) {
	n.t.Helper()
	must.NoError(n.t, os.MkdirAll(filepath.Dir(n.path(name)), 0o755))
	must.NoError(n.t, os.WriteFile(n.path(name), []byte(text), 0o644))
}

func (n *node) link(target, name string) {
	n.t.Helper()
	must.NoError(n.t, os.MkdirAll(filepath.Dir(n.path(name)), 0o755))
	_ = os.Remove(n.path(name))
	must.NoError(n.t, os.Symlink(target, n.path(name)))
}

func (n *node) chown(name string, uid int) {
	n.t.Helper()
	must.NoError(n.t, os.Chown(n.path(name), uid, uid))
}

// program is the content of the plugin's file, older or newer than it is.
func (n *node) program(more string) string {
	n.t.Helper()
	text, err := os.ReadFile(n.exe)
	must.NoError(n.t, err)
	return string(text) + more
}

// agent adds a process that is an agent with these arguments.
func (n *node) agent(pid int, args ...string) {
	n.t.Helper()
	dir := fmt.Sprintf("proc/%d", pid)
	n.link("/usr/bin/nomad", dir+"/exe")
	n.link("mnt:[1]", dir+"/ns/mnt")
	n.link(n.dir, dir+"/cwd")
	n.write(dir+"/status", "Name:\tnomad\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n")
	n.write(dir+"/cmdline", "nomad\x00agent\x00"+strings.Join(args, "\x00")+"\x00")
	n.write(dir+"/cgroup", "0::/user.slice/user-0.slice/session-1.scope\n")
}

// run runs a command, and returns its exit code and both outputs.
func (n *node) run(args ...string) (code int, out string) {
	var b bytes.Buffer
	code = n.plugin.run(n.machine, args[0], args[1:], &b, &b)
	return code, b.String()
}

// tree is everything that install could have changed.
func (n *node) tree() (all []string) {
	n.t.Helper()
	must.NoError(n.t, filepath.WalkDir(n.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == n.proc {
			return fs.SkipDir
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		line := path + " " + info.Mode().String()
		if info.Mode().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", sha256.Sum256(text))
		}
		all = append(all, line)
		return nil
	}))
	return all
}
