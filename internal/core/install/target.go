// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/agentconfig"
	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// target is the agent's side of an installation.
type target struct {
	dataDir   string // empty if unknown
	pluginDir string

	// hostVolumes is the directory of host volume plugins; empty if the plugin is none
	hostVolumes string

	configDir string             // empty: the agent reads no directory
	files     []agentconfig.File // all that the agent reads
	restart   string             // what a person has to do
}

const giveDirs = "give -plugin-dir and -config-dir"

// find finds the agent's directories, and prints what was found and from where.
func (c *command) find() (*target, error) {
	for _, dir := range []*string{&c.pluginDir, &c.configDir, &c.hostVolumes} {
		if *dir == "" {
			continue
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return nil, err
		}
		*dir = abs
	}
	if c.dryRun {
		c.say("Dry run: nothing is changed.")
	}
	a, err := c.agent()
	if err != nil {
		return nil, err
	}
	t := &target{configDir: c.configDir, restart: c.restart(a)}
	said := "given"
	var paths []string
	switch {
	case a != nil:
		paths = a.configs
	case c.configDir == "" && exists(c.usualConfig):
		paths = []string{c.usualConfig}
	}
	if c.configDir != "" && !slices.Contains(paths, c.configDir) {
		paths = append(slices.Clip(paths), c.configDir)
	}
	for _, path := range paths {
		files, isDir, err := c.read(path)
		if err != nil {
			return nil, fmt.Errorf("the agent's configuration can't be used: %w", err)
		}
		t.files = append(t.files, files...)
		if isDir && t.configDir == "" {
			t.configDir, said = path, "-config of the agent"
			if a == nil {
				said = "the usual place"
			}
		}
	}
	from := c.findDirs(a, t)
	switch {
	case t.pluginDir == "" && a != nil:
		return nil, fmt.Errorf("the agent (process %d) has neither plugin_dir nor data_dir, as with -dev: "+
			"start it with -plugin-dir", a.pid)
	case t.pluginDir == "":
		return nil, fmt.Errorf("no agent runs, and neither %s nor a configuration has a plugin directory: %s",
			c.usualData, giveDirs)
	}
	c.say("Plugin directory: %s (%s)", t.pluginDir, from)
	if c.HostVolumePlugin != "" {
		if from = c.findHostVolumes(a, t); t.hostVolumes == "" {
			return nil, errors.New("the agent's data_dir is not known, in which host volume plugins are: " +
				"give -host-volume-plugin-dir")
		}
		c.say("Directory of host volume plugins: %s (%s)", t.hostVolumes, from)
	}
	switch {
	case t.configDir != "":
		c.say("Configuration: %s (%s)", t.configDir, said)
	case len(t.files) > 0:
		c.say("Configuration: %s (-config of the agent)", strings.Join(paths, ", "))
	default:
		c.say("Configuration: none was found")
	}
	return t, nil
}

// agent is the one that is meant, nil if none runs or it does not matter which.
func (c *command) agent() (*agent, error) {
	here, elsewhere, others, err := c.agents()
	if err != nil {
		return nil, err
	}
	given := c.pluginDir != "" && c.configDir != ""
	if c.pid != 0 {
		here = slices.DeleteFunc(here, func(a agent) bool { return a.pid != c.pid })
		if len(here) == 0 && !slices.Contains(elsewhere, c.pid) {
			return nil, fmt.Errorf("process %d is no Nomad agent of root or of this user", c.pid)
		}
	}
	switch {
	case len(here) == 1:
		c.say("Agent: process %d", here[0].pid)
		return &here[0], nil
	case len(here) > 1 && !given:
		return nil, fmt.Errorf("several agents run (%s): choose one with -pid, or %s", processes(agentPIDs(here)), giveDirs)
	case len(elsewhere) > 0 && !given:
		return nil, fmt.Errorf("the agent (%s) sees other files than this shell, as in a container: run this command where "+
			"the agent runs, or %s as they are here", processes(elsewhere), giveDirs)
	case len(others) > 0:
		c.say("Agent: not that of another user (%s), whose command line is not to be trusted", processes(others))
	case len(here) == 0 && os.Geteuid() != 0:
		c.say("Agent: none that this user may look at")
	case len(here) == 0:
		c.say("Agent: none runs")
	}
	return nil, nil
}

func agentPIDs(agents []agent) (pids []int) {
	for _, a := range agents {
		pids = append(pids, a.pid)
	}
	return pids
}

func processes(pids []int) string {
	word := "process "
	if len(pids) > 1 {
		word = "processes "
	}
	return word + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(pids)), ", "), "[]")
}

// findDirs finds data_dir and plugin_dir, and returns from where it has the latter. As for an
// agent, its flags come before its files, and later files before earlier ones
// (command/agent/command.go).
func (c *command) findDirs(a *agent, t *target) (from string) {
	flags := cmp.Or(a, &agent{})
	t.dataDir, from = setting(flags.dataDir, "data_dir", t.files)
	if from != "" {
		from = "plugins in " + from
	} else if a == nil && c.configDir == "" && (len(t.files) > 0 || exists(c.usualData)) {
		t.dataDir, from = c.usualData, "the usual place"
	}
	if t.dataDir != "" {
		t.pluginDir = t.defaultPluginDir()
	}
	if dir, said := setting(flags.pluginDir, "plugin_dir", t.files); dir != "" {
		t.pluginDir, from = dir, said
	}
	if c.pluginDir != "" {
		t.pluginDir, from = c.pluginDir, "given"
	}
	return from
}

// findHostVolumes finds host_volume_plugin_dir, and returns from where it has it.
func (c *command) findHostVolumes(a *agent, t *target) (from string) {
	const option = "host_volume_plugin_dir"
	switch flags := cmp.Or(a, &agent{}); {
	case c.hostVolumes != "":
		t.hostVolumes = c.hostVolumes
		return "given"
	case flags.hostVolumes != "":
		t.hostVolumes = flags.hostVolumes
		return option + " of the agent's command line"
	}
	for _, f := range slices.Backward(t.files) {
		if t.hostVolumes = f.Client(option); t.hostVolumes != "" {
			return option + " of " + f.Path
		}
	}
	t.hostVolumes = t.defaultHostVolumes()
	return "in the agent's data_dir"
}

// defaultHostVolumes is empty where data_dir is unknown.
func (t *target) defaultHostVolumes() string {
	if t.dataDir == "" {
		return ""
	}
	return filepath.Join(t.dataDir, "host_volume_plugins")
}

func (t *target) defaultPluginDir() string { return filepath.Join(t.dataDir, "plugins") }

// setting is what the agent's command line or the last of its files says.
func setting(flag, option string, files []agentconfig.File) (value, from string) {
	if flag != "" {
		return flag, option + " of the agent's command line"
	}
	for _, f := range slices.Backward(files) {
		if value := f.Text(option); value != "" {
			return value, option + " of " + f.Path
		}
	}
	return "", ""
}

var nodeID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// node is the agent's node id, empty if it is unknown.
func (t *target) node() string {
	if t.dataDir == "" {
		return ""
	}
	id, _ := os.ReadFile(filepath.Join(t.dataDir, "client", "client-id"))
	return string(nodeID.Find(id))
}

// read reads a file or a directory of an agent's configuration that no other user can change.
func (c *command) read(path string) (files []agentconfig.File, isDir bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, false, err
	}
	dir := path
	if !info.IsDir() {
		dir = filepath.Dir(path)
	}
	if err := owndir.Check(dir, c.trusted...); err != nil {
		return nil, false, err
	}
	if files, err = agentconfig.Read(path); err != nil {
		return nil, false, err
	}
	for _, f := range files {
		info, err := os.Stat(f.Path)
		if err == nil {
			err = owndir.CheckFile(f.Path, info, c.trusted...)
		}
		if err != nil {
			return nil, false, err
		}
	}
	return files, info.IsDir(), nil
}

// restart is what a person has to do about the agent.
func (c *command) restart(a *agent) string {
	switch {
	case a != nil && a.unit != "":
		return "restart the agent: sudo systemctl restart " + a.unit
	case a != nil:
		return fmt.Sprintf("restart the agent, process %d", a.pid)
	case slices.ContainsFunc(c.units, exists):
		return "restart the agent: sudo systemctl restart nomad"
	}
	return "restart the agent"
}

// block returns the plugin's block in the agent's configuration: the last one that has a
// config, as an agent merges them. The file is empty if there is none.
func (t *target) block(name string) (config map[string]any, file string) {
	config = map[string]any{}
	for _, f := range t.files {
		if block, ok := f.Plugins[name]; ok && (file == "" || len(block) > 0) {
			config, file = block, f.Path
		}
	}
	return config, file
}

// exists reports whether there is something, even if it can't be looked at.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}
