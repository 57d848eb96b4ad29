// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package install is the commands "install" and "uninstall" of a plugin's binary: it copies
// itself to where a Nomad agent of this machine loads plugins from, and adds a configuration
// file. The agent runs as root what is put there, so a directory that another user can change
// is refused.
package install

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
)

// Plugin is what is installed: the program that runs.
type Plugin struct {
	// Binary is the name of the plugin's file, and of its block in an agent's configuration.
	Binary string

	// Block is that block, with every option in a comment.
	Block string

	// HostVolumePlugin is the id under which the program is a host volume plugin, too (see
	// plugin.Plugin); empty if it is none.
	HostVolumePlugin string

	// Remains returns what is still there after an uninstall, as sentences about directories
	// and the like, and why it should not be uninstalled now, if there is a reason. config is
	// the plugin's config block, empty for none; node is the agent's node id, empty if unknown.
	Remains func(config any, node string) (what []string, inUse error)
}

// machine is where agents and their files are looked for.
type machine struct {
	exe                    string // the program to install
	proc                   string
	usualConfig, usualData string
	units                  []string // files of a unit nomad
	trusted                []int    // users that are trusted like root
}

// command is one run of install or uninstall.
type command struct {
	Plugin
	machine
	out                  io.Writer
	pluginDir, configDir string
	hostVolumes          string
	pid                  int
	dryRun, force        bool
}

// Run runs the command with its arguments, and returns the exit code: 0 if it is done or there
// was nothing to do, 1 if it failed, 2 for wrong arguments.
func (p Plugin) Run(verb string, args []string, stdout, stderr io.Writer) int {
	return p.run(thisMachine(), verb, args, stdout, stderr)
}

func thisMachine() machine {
	return machine{
		exe: "/proc/self/exe", proc: "/proc", usualConfig: "/etc/nomad.d", usualData: "/opt/nomad/data",
		units: []string{"/etc/systemd/system/nomad.service", "/usr/lib/systemd/system/nomad.service",
			"/lib/systemd/system/nomad.service"},
		trusted: owndir.Nomad(),
	}
}

func (p Plugin) run(m machine, verb string, args []string, stdout, stderr io.Writer) int {
	c := command{Plugin: p, machine: m, out: stdout}
	flags := flag.NewFlagSet(p.Binary+" "+verb, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.pluginDir, "plugin-dir", "", "the agent's plugin_dir (default: that of the running agent)")
	flags.StringVar(&c.configDir, "config-dir", "", "the directory of the agent's configuration (default: likewise)")
	if p.HostVolumePlugin != "" {
		flags.StringVar(&c.hostVolumes, "host-volume-plugin-dir", "",
			"the agent's host_volume_plugin_dir (default: likewise)")
	}
	flags.IntVar(&c.pid, "pid", 0, "the agent's process id, if several run")
	flags.BoolVar(&c.dryRun, "dry-run", false, "print the same, and change nothing")
	do := c.install
	if verb == "uninstall" {
		do = c.uninstall
		flags.BoolVar(&c.force, "force", false, "also if tasks run")
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "%s %s: %q is not known\n", p.Binary, verb, flags.Args())
		flags.Usage()
		return 2
	}
	if err := do(); err != nil {
		fmt.Fprintf(stderr, "%s %s: %v\n", p.Binary, verb, err)
		return 1
	}
	return 0
}

func (c *command) say(format string, args ...any) { fmt.Fprintf(c.out, format+"\n", args...) }

// do makes a change, unless this is a dry run, and prints it.
func (c *command) do(change func() error, format string, args ...any) error {
	if !c.dryRun {
		if err := change(); err != nil {
			return err
		}
	}
	c.say(format, args...)
	return nil
}

func (c *command) install() error {
	t, err := c.find()
	if err != nil {
		return err
	}
	config, file := t.block(c.Binary)
	info, err := load(c.exe, config)
	if err != nil {
		if file != "" {
			err = fmt.Errorf("with the block plugin %q of %s: %w", c.Binary, file, err)
		}
		return fmt.Errorf("the agent would not start with it: %w", err)
	}
	c.say("Checked: an agent loads it, as the %s %s %s", info.Type, info.Name, info.PluginVersion)

	link, err := c.link(t)
	if err != nil {
		return err
	}
	defer link.close()
	dir, err := c.openPluginDir("plugin directory", t.pluginDir)
	if err != nil {
		return err
	}
	if dir != nil {
		defer dir.Close()
	}
	changed, err := c.installBinary(dir, filepath.Join(t.pluginDir, c.Binary), info.PluginVersion)
	if err != nil {
		return err
	}
	linked, err := link.install()
	if err != nil {
		return err
	}
	wrote, err := c.installConfig(t, file)
	if err != nil {
		return err
	}
	if changed || linked || wrote {
		c.say("Now %s. Tasks go on.", t.restart)
	}
	return nil
}

// openPluginDir opens a directory of plugins, and makes it if it is missing. In a dry run it is
// nil then.
func (c *command) openPluginDir(what, path string) (*os.Root, error) {
	if !c.dryRun {
		f, err := owndir.Make(path, 0o755, c.trusted...) // Nomad's data_dir has the same mode: tasks go through it
		if err != nil {
			return nil, fmt.Errorf("the %s can't be used: %w", what, err)
		}
		f.Close()
	}
	var fsInfo unix.Statfs_t
	if err := unix.Statfs(path, &fsInfo); err == nil && fsInfo.Flags&unix.ST_NOEXEC != 0 {
		return nil, fmt.Errorf("the %s can't be used: %s is mounted noexec", what, path)
	}
	dir, err := c.open(path)
	if err != nil {
		return nil, fmt.Errorf("the %s can't be used: %w", what, err)
	}
	return dir, nil
}

// open opens a directory that no other user can change; it is nil if it is missing.
func (c *command) open(path string) (*os.Root, error) {
	f, err := owndir.Open(path, c.trusted...)
	if err != nil {
		return nil, ignoreMissing(err)
	}
	defer f.Close()
	return os.OpenRoot(f.Name())
}

func (c *command) installBinary(dir *os.Root, path, version string) (changed bool, err error) {
	said := "Wrote " + path
	if dir != nil {
		old, there, err := c.binary(dir, c.Binary)
		if err != nil {
			return false, err
		}
		if there {
			said = fmt.Sprintf("Replaced %s: version %s by %s", path, strings.TrimPrefix(old, "v"), version)
		}
		same, err := c.installed(dir)
		if err != nil {
			return false, err
		}
		if same {
			c.say("%s is there already", path)
			return false, nil
		}
	}
	write := func() error {
		self, err := os.Open(c.exe)
		if err != nil {
			return err
		}
		defer self.Close()
		return put(dir, c.Binary, self, 0o755)
	}
	return true, c.do(write, "%s", said)
}

// installConfig adds a file with the plugin's block, unless there is a block: file has it.
func (c *command) installConfig(t *target, file string) (wrote bool, err error) {
	minimal := fmt.Sprintf("plugin %q {}", c.Binary)
	if file != "" {
		c.say("%s has a block plugin %q already", file, c.Binary)
		return false, nil
	}
	if t.configDir == "" {
		c.say("Add this to the agent's configuration, without which it does not load the plugin (\"%s config\" prints "+
			"every option):\n\n%s\n", c.Binary, minimal)
		return false, nil
	}
	name := c.Binary + ".hcl"
	path := filepath.Join(t.configDir, name)
	dir, err := c.open(t.configDir)
	if err != nil {
		return false, fmt.Errorf("the agent's configuration can't be used: %w", err)
	}
	if dir == nil {
		return false, fmt.Errorf("%s does not exist", t.configDir)
	}
	defer dir.Close()
	if _, err := dir.Lstat(name); err == nil {
		c.say("%s is there already, but has no block plugin: add %s", path, minimal)
		return false, nil
	}
	return true, c.do(func() error { return put(dir, name, bytes.NewReader(c.configFile()), 0o644) }, "Wrote %s", path)
}

func (c *command) uninstall() error {
	t, err := c.find()
	if err != nil {
		return err
	}
	dir, err := c.open(t.pluginDir)
	if err != nil {
		return fmt.Errorf("the plugin directory can't be used: %w", err)
	}
	path, there := filepath.Join(t.pluginDir, c.Binary), false
	if dir != nil {
		defer dir.Close()
		if _, there, err = c.binary(dir, c.Binary); err != nil {
			return err
		}
	}
	config, file := t.block(c.Binary)
	var remains []string
	if c.Remains != nil {
		var inUse error
		if remains, inUse = c.Remains(config, t.node()); there && inUse != nil && !c.force {
			return fmt.Errorf("%w, or use -force", inUse)
		}
	}
	link, err := c.link(t)
	if err != nil {
		return err
	}
	defer link.close()
	removed, err := c.uninstallConfig(t, file)
	if err != nil {
		return err
	}
	if err := link.uninstall(); err != nil {
		return err
	}
	if there {
		remove := func() error { return errors.Join(dir.Remove(c.Binary), sweep(dir, c.Binary), syncDir(dir)) }
		if err := c.do(remove, "Removed %s", path); err != nil {
			return err
		}
		if t.pluginDir == t.defaultPluginDir() {
			if err := c.removeEmpty(t.pluginDir, dir, c.Binary); err != nil {
				return err
			}
		}
	} else {
		c.say("%s is not there", path)
	}
	for _, what := range remains {
		c.say("%s", what)
	}
	if there || removed {
		c.say("Now %s; until then it has the plugin.", t.restart)
	}
	return nil
}

// removeEmpty removes a directory that install may have made, if nothing is in it but the
// file that was removed, which is still there in a dry run.
func (c *command) removeEmpty(path string, dir *os.Root, removed string) error {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return err
	}
	entries, err := fs.ReadDir(dir.FS(), ".")
	other := func(e fs.DirEntry) bool { return e.Name() != removed }
	if err != nil || slices.ContainsFunc(entries, other) {
		return err
	}
	return c.do(func() error { return os.Remove(path) }, "Removed %s, which is empty", path)
}

// uninstallConfig removes the file that install wrote. Others are a person's.
func (c *command) uninstallConfig(t *target, file string) (removed bool, err error) {
	if t.configDir != "" {
		dir, err := c.open(t.configDir)
		if err != nil {
			return false, fmt.Errorf("the agent's configuration can't be used: %w", err)
		}
		if dir != nil {
			defer dir.Close()
			name := c.Binary + ".hcl"
			if info, err := dir.Lstat(name); err == nil && info.Mode().IsRegular() {
				text, err := dir.ReadFile(name)
				if err != nil {
					return false, err
				}
				if unchanged(text) {
					remove := func() error { return errors.Join(dir.Remove(name), syncDir(dir)) }
					return true, c.do(remove, "Removed %s", filepath.Join(t.configDir, name))
				}
			}
		}
	}
	if file != "" {
		c.say("%s stays: its block plugin %q was not written by install, or was changed", file, c.Binary)
	}
	return false, nil
}
