// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/hcl"
	"github.com/hashicorp/nomad/client/lib/numalib"
	"github.com/hashicorp/nomad/helper/pluginutils/loader"
	"github.com/hashicorp/nomad/nomad/structs/config"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// host is the part of a Nomad agent that drivers need: its plugin loader, one plugin, and the
// directories and cgroups of tasks.
type host struct {
	driver  Driver
	dir     string // all files of the run
	tmp     string // the plugin's TMPDIR, which identifies its processes
	log     *logged
	logger  hclog.Logger
	catalog loader.PluginCatalog
	config  map[string]any
	task    map[string]any // a task's config block
	info    *base.PluginInfoResponse
	caps    *drivers.Capabilities
	taskHCL *hclspec.Spec
	cgroups *cgroups

	instance loader.PluginInstance // nil if none is running
	drivers.DriverPlugin
	pid int // 0 if a case has ended the plugin
}

// newHost loads the plugin as an agent does, and starts it.
func newHost(d Driver) (*host, error) {
	h := &host{driver: d, log: &logged{}}
	if err := h.load(); err != nil {
		h.close()
		return nil, fmt.Errorf("failed to load the plugin: %w", err)
	}
	return h, nil
}

func (h *host) load() (err error) {
	env := map[string]string{}
	if h.driver.Exe == "" {
		env[pluginVar] = "1"
		h.driver.Exe, err = os.Executable()
	} else {
		h.driver.Exe, err = filepath.Abs(h.driver.Exe)
	}
	if err != nil {
		return err
	}
	h.logger = hclog.New(&hclog.LoggerOptions{Output: &h.log.b, Mutex: &h.log.mu, Level: hclog.Debug})
	if h.dir, err = os.MkdirTemp("", "oc"); err != nil { // short: a socket's path has at most 107 bytes (unix(7))
		return err
	}
	h.tmp = filepath.Join(h.dir, "t")
	for _, name := range []string{".", "t", "p", "alloc", "mounts"} {
		dir := filepath.Join(h.dir, name)
		// tasks that run as other users need access
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o755)); err != nil {
			return err
		}
	}
	env["TMPDIR"] = h.tmp
	if err := writeWrapper(h.wrapper(), h.driver.Exe, env); err != nil {
		return err
	}
	if h.config, err = h.pluginConfig(); err != nil {
		return err
	}
	if h.catalog, err = h.look(); err != nil {
		return err
	}
	h.info = h.catalog.Catalog()[base.PluginTypeDriver][0]
	if err := h.start(); err != nil {
		return err
	}
	if h.caps, err = h.Capabilities(); err != nil {
		return err
	}
	if h.taskHCL, err = h.TaskConfigSchema(); err != nil {
		return err
	}
	if h.task, err = h.taskTemplate(); err != nil {
		return err
	}
	h.cgroups = newCgroups(h.logger)
	return nil
}

// wrapper returns the path of the script that executes the plugin. To Nomad's plugin loader, the script is the plugin.
func (h *host) wrapper() string { return filepath.Join(h.dir, "p", filepath.Base(h.driver.Exe)) }

// writeWrapper writes a script that executes exe with additional environment variables.
func writeWrapper(path, exe string, env map[string]string) error {
	var script strings.Builder
	script.WriteString("#!/bin/sh\n")
	for k, v := range env {
		fmt.Fprintf(&script, "export %s='%s'\n", k, v)
	}
	fmt.Fprintf(&script, "exec '%s' \"$@\"\n", exe)
	return os.WriteFile(path, []byte(script.String()), 0o755)
}

// loadPlugin loads the plugin as a starting agent does: it starts one process to identify the plugin, and another one
// to validate the configuration. The file at path must be the only one in its directory.
func loadPlugin(log hclog.Logger, path string, options map[string]any) (loader.PluginCatalog, error) {
	return loader.NewPluginLoader(&loader.PluginLoaderConfig{
		Logger: log, PluginDir: filepath.Dir(path), SupportedVersions: loader.AgentSupportedApiVersions,
		Configs: []*config.PluginConfig{{Name: filepath.Base(path), Config: options}},
	})
}

func (h *host) look() (loader.PluginCatalog, error) {
	catalog, err := loadPlugin(h.logger, h.wrapper(), h.config)
	if err == nil && len(catalog.Catalog()[base.PluginTypeDriver]) == 0 {
		err = fmt.Errorf("the plugin is not a driver: %s", h.lastWords())
	}
	return catalog, err
}

var topology = numalib.Scan(numalib.PlatformScanners(false))

// start starts the plugin's process that the cases use, as an agent does.
func (h *host) start() error {
	agent := &base.ClientDriverConfig{ClientMinPort: 20000, ClientMaxPort: 32000, Topology: topology}
	instance, err := h.catalog.Dispense(h.info.Name, base.PluginTypeDriver, &base.AgentConfig{Driver: agent}, h.logger)
	if err != nil {
		return err
	}
	h.use(instance)
	return nil
}

func (h *host) use(instance loader.PluginInstance) {
	reattach, _ := instance.ReattachConfig()
	h.instance, h.DriverPlugin, h.pid = instance, instance.Plugin().(drivers.DriverPlugin), reattach.Pid
}

// kill kills the plugin's process.
func (h *host) kill() {
	if pid := h.pid; pid != 0 { // kill(2) with 0 would signal this process's own group
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	h.shutdown()
}

// shutdown ends the plugin in the same way as an agent that shuts down.
func (h *host) shutdown() {
	pid := h.pid
	h.pid = 0
	h.instance.Kill()
	eventually(soon, func() bool { return !alive(pid) })
}

// restart kills the plugin and starts it again, as after a crash.
func (c *check) restart() {
	c.kill()
	c.ok(c.start(), "starting the plugin again")
}

// close ends the plugin and describes its leftovers.
func (h *host) close() (left string) {
	if h.instance != nil {
		h.instance.Kill()
	}
	var pids []int
	if h.tmp != "" {
		pids = h.processes()
		// look only ten times a second: an idle supervisor takes seconds to exit, and each look reads all of /proc
		for end := time.Now().Add(patience); len(pids) > 0 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			pids = h.processes()
		}
	}
	for _, pid := range pids {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		left += fmt.Sprintf("process %d: %.60s ", pid, strings.ReplaceAll(string(line), "\x00", " "))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if h.cgroups != nil {
		left += h.cgroups.close()
	}
	if h.dir != "" {
		_ = os.RemoveAll(h.dir)
	}
	return strings.TrimSpace(left)
}

// processes returns the plugin's processes: those with its TMPDIR, or with one of its directories in their arguments.
func (h *host) processes() []int {
	pids := slices.Concat(withEnviron("TMPDIR="+h.tmp),
		testsupport.ProcessesWith("cmdline", func(arguments string) bool { return strings.Contains(arguments, h.dir+"/") }))
	slices.Sort(pids)
	return slices.Compact(pids)
}

// withEnviron returns the processes that were started with this environment variable.
func withEnviron(variable string) []int {
	return testsupport.ProcessesWith("environ", func(environ string) bool {
		return strings.HasPrefix(environ, variable+"\x00") || strings.Contains(environ, "\x00"+variable+"\x00")
	})
}

// lastWords returns the last two lines of the log, to which the agent and the plugin write.
func (h *host) lastWords() string {
	lines := strings.Split(strings.TrimSpace(h.log.String()), "\n")
	return strings.Join(lines[max(0, len(lines)-2):], " / ")
}

// pluginConfig returns the content of the plugin's config block.
func (h *host) pluginConfig() (map[string]any, error) {
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: base.Handshake, Plugins: map[string]goplugin.Plugin{base.PluginTypeBase: &base.PluginBase{}},
		Cmd:              exec.Command(h.wrapper()),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC}, Logger: h.logger,
	})
	defer client.Kill()
	rpc, err := client.Client()
	if err != nil {
		return nil, err
	}
	raw, err := rpc.Dispense(base.PluginTypeBase)
	if err != nil {
		return nil, err
	}
	spec, err := raw.(base.BasePlugin).ConfigSchema()
	if err != nil {
		return nil, err
	}
	defaults := map[string]any{
		"state_dir": filepath.Join(h.dir, "s"), "cache_dir": filepath.Join(h.dir, "c"), "enabled": true,
	}
	options := attributes(spec)
	maps.DeleteFunc(defaults, func(name string, _ any) bool { return !options[name] })
	given, err := parseHCL(h.driver.Config)
	maps.Copy(defaults, given)
	return defaults, err
}

// taskTemplate returns a task's config block, in which SCRIPT stands for a script.
func (h *host) taskTemplate() (map[string]any, error) {
	options := attributes(h.taskHCL)
	switch {
	case h.driver.Task != "":
		return parseHCL(h.driver.Task)
	case options["code"] && options["args"]:
		const shell = `import os, sys; os.execv("/bin/sh", ["sh", "-c", sys.argv[1]])`
		return map[string]any{"code": shell, "args": []any{"SCRIPT"}}, nil
	case options["script"]:
		return map[string]any{"script": "SCRIPT"}, nil
	case options["command"] && options["args"] && !options["image"]:
		return map[string]any{"command": "/bin/sh", "args": []any{"-c", "SCRIPT"}}, nil
	}
	return nil, errors.New("failed to derive a task's config block that runs a script: " +
		"pass a block that contains SCRIPT, such as " +
		`{"command": "/bin/sh", "args": ["-c", "SCRIPT"]}`)
}

// attributes returns the names of the options in a schema.
func attributes(spec *hclspec.Spec) map[string]bool {
	names := map[string]bool{}
	for name := range spec.GetObject().GetAttributes() {
		names[name] = true
	}
	return names
}

// parseHCL parses HCL or JSON in the same way as an agent parses its configuration.
func parseHCL(text string) (map[string]any, error) {
	parsed := map[string]any{}
	if err := hcl.Decode(&parsed, text); err != nil {
		return nil, fmt.Errorf("failed to parse %q: %w", text, err)
	}
	return parsed, nil
}
