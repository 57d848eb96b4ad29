// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package config

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

var defaults = schema.Of[Config]().Default()

var typeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Validate does not look at the hardware: an agent must start even if devices are missing.
func (c Config) Validate() error {
	var wrong schema.Problems
	wrong.Add(c.validateShadowDir())
	wrong.Add(c.validateRoot())
	variables := map[string]string{}
	for _, label := range slices.Sorted(maps.Keys(c.Devices)) {
		b := c.Devices[label]
		switch {
		case !typeName.MatchString(label):
			wrong.Addf("device %q: jobs request devices by this name: use letters, digits, "+
				"\"-\", \"_\" and \".\", with a letter or digit first", label)
			continue
		case c.MatchAll && label == match.AnyType:
			wrong.Addf("device %q: match_all publishes its devices under this name: use another name", label)
		}
		variable := VariableName(label)
		if other, taken := variables[variable]; taken {
			wrong.Addf("device %q: its variables in a task, %s…, would have the same names as for device %q: use another name",
				label, variable, other)
		}
		variables[variable] = label
		path := b.taskPath(label)
		if slices.Contains(Taken, path) {
			wrong.Addf("device %q: its nodes would be in %s, which exists in each task: set path", label, path)
		}
		for i, m := range b.Mounts {
			if inside(path, m.InTask()) {
				wrong.Addf("device %q: mount[%d] is at %q and would hide the nodes, which are in %s: "+
					"use another task_path, or path",
					label, i, m.InTask(), path)
			}
		}
	}
	return wrong.OrNil()
}

func (c Config) validateShadowDir() error {
	if err := checkPath("shadow_dir", c.ShadowDir, defaults.ShadowDir); err != nil {
		return err
	}
	if slices.Contains([]string{"/", "/dev", "/sys", "/proc", "/run", "/etc", "/usr", "/var", "/home"}, c.ShadowDir) {
		return fmt.Errorf("shadow_dir %q contains other files: use a separate directory, such as %q", c.ShadowDir,
			defaults.ShadowDir)
	}
	for _, kernels := range []string{"/sys", "/proc"} {
		if inside(c.ShadowDir, kernels) {
			return fmt.Errorf("shadow_dir %q is on a kernel file system: use for example %q", c.ShadowDir,
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
	_, done, err := OpenTree(c.Root)
	if err != nil {
		return err
	}
	done()
	if c.ShadowDir == defaults.ShadowDir {
		return fmt.Errorf("root %q is a simulation, whose nodes can't be in %s, "+
			"the directory for this machine's devices: remove root, or set shadow_dir to another directory", c.Root, c.ShadowDir)
	}
	return nil
}

// inside reports whether a path is dir or below it.
func inside(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// Taken lists paths that exist in each task, so none of them can be the directory of a device's nodes.
var Taken = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console",
	"/dev/ptmx", "/dev/pts",
	"/dev/shm", "/dev/mqueue", "/dev/fd", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/core", "/dev/bus"}

// Validate checks the rules that the block's schema can't express.
func (b Block) Validate() error {
	var wrong schema.Problems
	wrong.Add(b.Match.Validate())
	if len(wrong) == 0 { // knownAs needs a valid id
		_, err := b.knownAs()
		wrong.Add(err)
	}
	listed := map[string]bool{}
	for _, written := range b.Nodes {
		kind := strings.TrimSuffix(written, "?")
		switch {
		case !slices.Contains(sysfs.Kinds, sysfs.Kind(kind)):
			wrong.Addf("nodes has %q, which is not a kind of nodes: use one of %q", written, sysfs.Kinds)
		case listed[kind]:
			wrong.Addf("nodes has %q twice: list it once", kind)
		}
		listed[kind] = true
	}
	if b.Path != "" {
		if err := checkPath("path", b.Path, "/dev/zigbee"); err != nil {
			wrong.Add(err)
		} else if b.Path == "/" || b.Path == "/dev" {
			wrong.Addf("path %q is not a separate directory: use for example \"/dev/zigbee\"; "+
				"for one node, use names", b.Path)
		}
	}
	wrong.Add(b.checkNames(listed))
	_, err := parseMode(b.Mode)
	wrong.Add(err)
	_, err = lookupID("user", b.User)
	wrong.Add(err)
	_, err = lookupID("group", b.Group)
	wrong.Add(err)
	if b.Libusb != nil && *b.Libusb && len(listed) > 0 && !listed[string(sysfs.USB)] {
		wrong.Addf("libusb needs the usb node: add \"usb\" to nodes")
	}
	for i, m := range b.Mounts {
		wrong.Add(checkPath(fmt.Sprintf("mount[%d].host_path", i), m.HostPath, "/run/pcscd"))
		if m.TaskPath != "" {
			wrong.Add(checkPath(fmt.Sprintf("mount[%d].task_path", i), m.TaskPath, "/run/pcscd"))
		}
	}
	wrong.Add(b.checkPlaces())
	return wrong.OrNil()
}

// nodeName matches the names of nodes: tty, tty-if01, tty-if01-2, input-2, cdc-wdm.
var nodeName = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_-]*?)(-if[0-9a-f]{2})?(-[0-9]+)?$`)

func (b Block) checkNames(listed map[string]bool) error {
	var wrong schema.Problems
	for _, node := range slices.Sorted(maps.Keys(b.Names)) {
		parts := nodeName.FindStringSubmatch(node)
		switch {
		case parts != nil && listed[string(sysfs.Other)] && !slices.Contains(sysfs.Kinds, sysfs.Kind(parts[1])):
			// valid: the kernel's name, for a node of the kind "other"
		case parts == nil || !slices.Contains(sysfs.Kinds, sysfs.Kind(parts[1])):
			wrong.Addf("names has %q, which is not a node: use a kind, such as \"tty\", or a kind and an interface, "+
				"such as \"tty-if01\"; or list \"other\" in nodes and use the kernel's name", node)
		case len(listed) > 0 && !listed[parts[1]]:
			wrong.Addf("names has %q, of a kind that nodes does not list: add %q to nodes", node, parts[1])
		}
		wrong.Add(checkPath(fmt.Sprintf("names: %q", node), b.Names[node], "/dev/ttyACM0"))
	}
	return wrong.OrNil()
}

// checkPlaces refuses conflicts between paths in the task: two equal paths, or a path inside another one. Only a mount
// may be inside another mount.
func (b Block) checkPlaces() error {
	type place struct{ what, path string }
	var mounts, nodes []place
	for i, m := range b.Mounts {
		mounts = append(mounts, place{fmt.Sprintf("mount[%d]", i), m.InTask()})
	}
	for _, node := range slices.Sorted(maps.Keys(b.Names)) {
		nodes = append(nodes, place{fmt.Sprintf("names: %q", node), b.Names[node]})
	}
	var wrong schema.Problems
	all := append(mounts, nodes...)
	for i, x := range all {
		for j, y := range all[:i] {
			areMounts := i < len(mounts) && j < len(mounts)
			if x.path == y.path || !areMounts && (inside(x.path, y.path) || inside(y.path, x.path)) {
				wrong.Addf("%s is at %q, and %s at %q: neither can be inside the other: use different paths",
					y.what, y.path, x.what, x.path)
			}
		}
	}
	return wrong.OrNil()
}

func checkPath(option, path, example string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("%s %q is not absolute: begin it with /, such as %q", option, path, example)
	case path != filepath.Clean(path):
		return fmt.Errorf("%s %q is not in its shortest form: use %q", option, path, filepath.Clean(path))
	}
	return nil
}

func parseMode(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o777 || len(s) != 4 {
		return 0, fmt.Errorf("mode %q is not a file mode: use four octal digits in quotes, such as \"0660\"", s)
	}
	return uint32(n), nil
}
