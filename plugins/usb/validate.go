// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
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
var kinds = []string{string(sysfs.USB), string(sysfs.TTY), string(sysfs.HIDRaw), string(sysfs.Input),
	string(sysfs.Video),
	string(sysfs.Media), string(sysfs.Sound), string(sysfs.Printer), string(sysfs.Storage),
	string(sysfs.SG), string(sysfs.BSG), string(sysfs.Other)}

var defaults = schema.Of[Config]().Default()

var typeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// mistakes are all of a configuration, each once.
type mistakes struct{ schema.Problems }

func (m *mistakes) add(err error) {
	if err != nil {
		m.Problems = append(m.Problems, err)
	}
}

func (m *mistakes) addf(format string, args ...any) { m.add(fmt.Errorf(format, args...)) }

// orNil returns the mistakes as an error.
func (m *mistakes) orNil() error {
	if len(m.Problems) == 0 {
		return nil
	}
	return m.Problems
}

// Validate does not look at hardware: an agent without its devices must start.
func (c Config) Validate() error {
	var wrong mistakes
	wrong.add(c.validateShadowDir())
	wrong.add(c.validateRoot())
	variables := map[string]string{}
	for _, label := range slices.Sorted(maps.Keys(c.Devices)) {
		b := c.Devices[label]
		switch {
		case !typeName.MatchString(label):
			wrong.addf("device %q: its name is what jobs ask for and part of a path: use letters, digits, "+
				"\"-\", \"_\" and \".\"", label)
			continue
		case c.MatchAll && label == match.AnyType:
			wrong.addf("device %q: this is the type of what match_all publishes: use another name", label)
		}
		variable := variableName(label)
		if other, taken := variables[variable]; taken {
			wrong.addf("device %q: a task's variables would have the same names, %s…, as those of device %q: use another name",
				label, variable, other)
		}
		variables[variable] = label
		path := b.taskPath(label)
		if slices.Contains(taken, path) {
			wrong.addf("device %q: its nodes would be in %s, which is something else: set path", label, path)
		}
		for i, m := range b.Mounts {
			if inside(path, m.taskPath()) {
				wrong.addf("device %q: mount[%d] is at %q and would hide the nodes, which are in %s: "+
					"use another task_path, or path",
					label, i, m.taskPath(), path)
			}
		}
	}
	return wrong.orNil()
}

func (c Config) validateShadowDir() error {
	if err := checkPath("shadow_dir", c.ShadowDir, defaults.ShadowDir); err != nil {
		return err
	}
	if slices.Contains([]string{"/", "/dev", "/sys", "/proc", "/run", "/etc", "/usr", "/var", "/home"}, c.ShadowDir) {
		return fmt.Errorf("shadow_dir %q belongs to others: use a directory of its own, such as %q", c.ShadowDir,
			defaults.ShadowDir)
	}
	for _, kernels := range []string{"/sys", "/proc"} {
		if inside(c.ShadowDir, kernels) {
			return fmt.Errorf("shadow_dir %q is the kernel's, where nothing can be made: use for example %q", c.ShadowDir,
				defaults.ShadowDir)
		}
	}
	if err := owndir.Check(c.ShadowDir); err != nil {
		return fmt.Errorf("shadow_dir: %w", err)
	}
	return nil
}

func (c Config) validateRoot() error {
	if err := checkPath("root", c.Root, "/"); err != nil || c.Root == "/" {
		return err
	}
	_, done, err := openTree(c.Root)
	if err != nil {
		return err
	}
	done()
	if c.ShadowDir == defaults.ShadowDir {
		return fmt.Errorf("root %q is a simulation, whose nodes can't be in %s, "+
			"where those of the machine's own devices are: "+
			"leave root out, or set shadow_dir, too", c.Root, c.ShadowDir)
	}
	return nil
}

// inside reports whether a path is a directory or anything below it.
func inside(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// taken are paths that each task has.
var taken = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console",
	"/dev/ptmx", "/dev/pts",
	"/dev/shm", "/dev/mqueue", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/core", "/dev/bus"}

// Validate is part of a device block.
func (b Block) Validate() error {
	var wrong mistakes
	wrong.add(b.Match.Validate())
	if len(wrong.Problems) == 0 { // else it would be compared with what is wrong
		_, err := b.knownAs()
		wrong.add(err)
	}
	listed := map[string]bool{}
	for _, written := range b.Nodes {
		kind := strings.TrimSuffix(written, "?")
		switch {
		case !slices.Contains(kinds, kind):
			wrong.addf("nodes %q is not known%s: use %s", written, didYouMean(kind, kinds), oneOf(kinds))
		case listed[kind]:
			wrong.addf("nodes has %q twice", kind)
		}
		listed[kind] = true
	}
	if b.Path != "" {
		if err := checkPath("path", b.Path, "/dev/zigbee"); err != nil {
			wrong.add(err)
		} else if b.Path == "/" || b.Path == "/dev" {
			wrong.addf("path %q is not a directory of its own: use for example \"/dev/zigbee\"; "+
				"one node's path is set with names", b.Path)
		}
	}
	b.validateNames(&wrong, listed)
	_, err := parseMode(b.Mode)
	wrong.add(err)
	_, err = lookupUser(b.User)
	wrong.add(err)
	_, err = lookupGroup(b.Group)
	wrong.add(err)
	if b.Libusb != nil && *b.Libusb && len(listed) > 0 && !listed[string(sysfs.USB)] {
		wrong.addf("libusb needs the usb node: add \"usb\" to nodes")
	}
	switch {
	case b.Together > 1 && b.Count > 1:
		wrong.addf("together and count exclude each other: a unit is one task's")
	case b.Together > 1 && b.Libusb != nil && *b.Libusb:
		wrong.addf("together and libusb exclude each other: one device of a task can have what libusb looks at")
	}
	b.validateMounts(&wrong)
	return wrong.orNil()
}

// nodeName is how nodes are called: tty, tty-if01, tty-if01-2, input-2.
var nodeName = regexp.MustCompile(`^([a-z]+)(-if[0-9a-f]{2})?(-[0-9]+)?$`)

func (b Block) validateNames(wrong *mistakes, listed map[string]bool) {
	used := map[string]string{}
	for _, node := range slices.Sorted(maps.Keys(b.Names)) {
		path := b.Names[node]
		parts := nodeName.FindStringSubmatch(node)
		switch {
		case parts == nil || !slices.Contains(kinds, parts[1]):
			kind, _, _ := strings.Cut(node, "-")
			wrong.addf("names has %q, which is no node%s: use a kind, such as \"tty\", or one with its interface, "+
				"such as \"tty-if01\"", node, didYouMean(kind, kinds))
		case len(listed) > 0 && !listed[parts[1]]:
			wrong.addf("names has %q, of a kind that is not given: add %q to nodes", node, parts[1])
		}
		if err := checkPath(fmt.Sprintf("names: %q", node), path, "/dev/ttyACM0"); err != nil {
			wrong.add(err)
			continue
		}
		for _, other := range slices.Sorted(maps.Keys(used)) {
			switch {
			case path == other:
				wrong.addf("names: %q and %q are both %q: use different paths", used[other], node, path)
			case inside(path, other) || inside(other, path):
				wrong.addf("names: %q, at %q, and %q, at %q, can't be one inside of the other: use different paths",
					used[other], other, node, path)
			}
		}
		used[path] = node
	}
}

func (b Block) validateMounts(wrong *mistakes) {
	used := map[string]bool{}
	for i, m := range b.Mounts {
		at := fmt.Sprintf("mount[%d].", i)
		wrong.add(checkPath(at+"host_path", m.HostPath, "/run/pcscd"))
		if m.TaskPath != "" {
			wrong.add(checkPath(at+"task_path", m.TaskPath, "/run/pcscd"))
		}
		path := m.taskPath()
		if used[path] {
			wrong.addf("%stask_path %q is that of another mount: use different paths", at, path)
		}
		used[path] = true
		for _, node := range slices.Sorted(maps.Keys(b.Names)) {
			if name := b.Names[node]; inside(name, path) || inside(path, name) {
				wrong.addf("names: %q is %q, and mount[%d] is at %q: neither can be inside of the other, use different paths",
					node, name, i, path)
			}
		}
	}
}

func checkPath(option, path, example string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("%s %q is not absolute: write it from /, such as %q", option, path, example)
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
