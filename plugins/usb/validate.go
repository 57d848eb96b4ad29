package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/usb/match"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// kinds are those that nodes may list.
var kinds = []string{string(sysfs.USB), string(sysfs.TTY), string(sysfs.HIDRaw), string(sysfs.Input), string(sysfs.Video),
	string(sysfs.Media), string(sysfs.Sound), string(sysfs.Printer), string(sysfs.Storage),
	string(sysfs.SG), string(sysfs.BSG), string(sysfs.Other)}

var defaults = schema.Of[Config]().Default()

var typeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Validate looks at no hardware: an agent without its sticks must start.
func (c Config) Validate() error {
	for _, dir := range []struct{ option, path, instead string }{{"shadow_dir", c.ShadowDir, "/dev/nomad-usb"}, {"root", c.Root, "/"}} {
		if err := checkPath(dir.option, dir.path, dir.instead); err != nil {
			return err
		}
		if err := owndir.Check(dir.path); err != nil {
			return fmt.Errorf("%s: %w", dir.option, err)
		}
	}
	if c.Root != "/" {
		if c.ShadowDir == defaults.ShadowDir {
			return fmt.Errorf("root %q is a simulation, whose nodes can't be in %s, where those of the machine's own devices are: "+
				"leave root out, or set shadow_dir, too", c.Root, c.ShadowDir)
		}
		_, done, err := openTree(c.Root)
		if err != nil {
			return err
		}
		done()
	}
	if slices.Contains([]string{"/", "/dev", "/sys", "/proc", "/run", "/etc", "/usr", "/var", "/home"}, c.ShadowDir) {
		return fmt.Errorf("shadow_dir %q belongs to others: use a directory of its own, such as %q", c.ShadowDir, "/dev/nomad-usb")
	}
	variables := map[string]string{}
	for _, label := range slices.Sorted(maps.Keys(c.Devices)) {
		switch {
		case !typeName.MatchString(label):
			return fmt.Errorf("device %q: its name is what jobs ask for and part of a path: use letters, digits, \"-\", \"_\" and \".\"", label)
		case c.MatchAll && label == match.AnyType:
			return fmt.Errorf("device %q: this is the type of what match_all publishes: use another name", label)
		}
		variable := variableName(label)
		if other, taken := variables[variable]; taken {
			return fmt.Errorf("device %q: a task's variables would have the same names, %s…, as those of device %q: use another name", label, variable, other)
		}
		variables[variable] = label
		if path := c.Devices[label].taskPath(label); slices.Contains(taken, path) {
			return fmt.Errorf("device %q: its nodes would be in %s, which is something else: set path", label, path)
		}
	}
	return nil
}

// taken are paths that a task has anyway.
var taken = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console", "/dev/ptmx", "/dev/pts",
	"/dev/shm", "/dev/mqueue", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/core", "/dev/bus"}

// Validate is part of a device block.
func (b Block) Validate() error {
	if err := b.Match.Validate(); err != nil {
		return err
	}
	if _, err := b.knownAs(); err != nil {
		return err
	}
	given := map[string]bool{}
	for _, written := range b.Nodes {
		kind := strings.TrimSuffix(written, "?")
		switch {
		case !slices.Contains(kinds, kind):
			return fmt.Errorf("nodes %q is not known%s: use %s", written, didYouMean(kind, kinds), oneOf(kinds))
		case given[kind]:
			return fmt.Errorf("nodes has %q twice", kind)
		}
		given[kind] = true
	}
	if b.Path != "" {
		if err := checkPath("path", b.Path, "/dev/zigbee"); err != nil {
			return err
		}
		if b.Path == "/" || b.Path == "/dev" {
			return fmt.Errorf("path %q is not a directory of its own: use for example \"/dev/zigbee\"; one node's path is set with names", b.Path)
		}
	}
	if err := b.validateNames(given); err != nil {
		return err
	}
	if _, err := parseMode(b.Mode); err != nil {
		return err
	}
	if _, err := lookupUser(b.User); err != nil {
		return err
	}
	if _, err := lookupGroup(b.Group); err != nil {
		return err
	}
	if b.Libusb != nil && *b.Libusb && len(given) > 0 && !given[string(sysfs.USB)] {
		return errors.New("libusb needs the usb node: add \"usb\" to nodes")
	}
	return b.validateMounts()
}

// nodeName is how nodes are called: tty, tty-if01, tty-if01-2, input-2.
var nodeName = regexp.MustCompile(`^([a-z]+)(-if[0-9a-f]{2})?(-[0-9]+)?$`)

func (b Block) validateNames(given map[string]bool) error {
	used := map[string]string{}
	for _, node := range slices.Sorted(maps.Keys(b.Names)) {
		path := b.Names[node]
		parts := nodeName.FindStringSubmatch(node)
		switch {
		case parts == nil || !slices.Contains(kinds, parts[1]):
			kind, _, _ := strings.Cut(node, "-")
			return fmt.Errorf("names has %q, which is no node%s: use a kind, such as \"tty\", or one with its interface, such as \"tty-if01\"", node, didYouMean(kind, kinds))
		case len(given) > 0 && !given[parts[1]]:
			return fmt.Errorf("names has %q, of a kind that is not given: add %q to nodes", node, parts[1])
		}
		if err := checkPath(fmt.Sprintf("names: %q", node), path, "/dev/ttyACM0"); err != nil {
			return err
		}
		if other, twice := used[path]; twice {
			return fmt.Errorf("names: %q and %q are both %q: use different paths", other, node, path)
		}
		used[path] = node
	}
	return nil
}

func (b Block) validateMounts() error {
	used := map[string]bool{}
	for i, m := range b.Mounts {
		at := fmt.Sprintf("mount[%d].", i)
		if err := checkPath(at+"host_path", m.HostPath, "/run/pcscd"); err != nil {
			return err
		}
		if m.TaskPath != "" {
			if err := checkPath(at+"task_path", m.TaskPath, "/run/pcscd"); err != nil {
				return err
			}
		}
		if path := m.taskPath(); used[path] {
			return fmt.Errorf("%stask_path %q is that of another mount: use different paths", at, path)
		} else {
			used[path] = true
		}
	}
	return nil
}

func checkPath(option, path, instead string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("%s %q is not absolute: write it from /, such as %q", option, path, instead)
	case path != filepath.Clean(path):
		return fmt.Errorf("%s %q is not in its shortest form: write %q", option, path, filepath.Clean(path))
	}
	return nil
}

func parseMode(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 8, 32)
	if err == nil && n <= 0o777 && len(s) == 4 {
		return uint32(n), nil
	}
	if err == nil && n <= 0o777 && len(s) == 3 {
		meant := fmt.Sprintf("%q", "0"+s)
		if decimal, _ := strconv.ParseUint(s, 10, 32); decimal <= 0o777 {
			meant += fmt.Sprintf(", or \"%04o\" if that is what was written without quotes", decimal)
		}
		return 0, fmt.Errorf("mode %q has no 0 in front: write %s", s, meant)
	}
	return 0, fmt.Errorf("mode %q is not a file mode: use four octal digits in quotes, such as \"0660\"", s)
}
