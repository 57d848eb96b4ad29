// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os/user"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/usb/match"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// Plan is a parsed configuration.
type Plan struct {
	Config
	Rules  *match.Rules
	udev   bool               // whether a rule needs udev's properties
	Blocks map[string]*Parsed // key: type; includes match.AnyType if match_all is set
}

// Parsed is a parsed device block.
type Parsed struct {
	Block
	Kind     string // the type that jobs request
	Dir      string // directory of the nodes in the task; empty: the nodes keep their paths on the host
	FileMode fs.FileMode
	UID, GID int // owner of the nodes; -1: as on the kernel's node
}

var blockDefaults = schema.Of[Block]().Default()

// NewPlan parses a valid configuration.
func NewPlan(c Config) (*Plan, error) {
	p := &Plan{Config: c, Blocks: map[string]*Parsed{}}
	matches, knownAs := map[string]match.Match{}, map[string]sysfs.ID{}
	for label, b := range c.Devices {
		matches[label] = b.Match
		p.udev = p.udev || len(b.Udev) > 0
		parsed, err := b.parse(label)
		if err != nil {
			return nil, fmt.Errorf("device %q: %w", label, err)
		}
		parsed.Dir = b.taskPath(label)
		if b.KnownAs != "" {
			knownAs[label], _ = b.knownAs() // no error: Validate has checked it
		}
		p.Blocks[label] = parsed
	}
	if c.MatchAll {
		all, err := blockDefaults.parse(match.AnyType)
		if err != nil {
			return nil, err
		}
		p.Blocks[match.AnyType] = all
	}
	for _, m := range c.Exclude {
		p.udev = p.udev || len(m.Udev) > 0
	}
	var err error
	if p.Rules, err = match.Compile(matches, c.Exclude, c.MatchAll); err != nil {
		return nil, err
	}
	p.Rules.KnownAs = knownAs
	return p, nil
}

// knownAs parses the option known_as, or returns the zero ID if it is not set.
func (b Block) knownAs() (sysfs.ID, error) {
	if b.KnownAs == "" {
		return sysfs.ID{}, nil
	}
	id, err := sysfs.ParseID(b.KnownAs)
	if err != nil {
		return id, fmt.Errorf("known_as %w", err)
	}
	if !b.Allows(id) {
		return id, fmt.Errorf("known_as %q does not match id: set known_as to the device's id at plug-in, and add it to id",
			b.KnownAs)
	}
	return id, nil
}

func (b Block) parse(kind string) (*Parsed, error) {
	mode, err := parseMode(b.Mode)
	if err != nil {
		return nil, err
	}
	parsed := &Parsed{Block: b, Kind: kind, FileMode: fs.FileMode(mode)}
	if parsed.UID, err = lookupID("user", b.User); err != nil {
		return nil, err
	}
	parsed.GID, err = lookupID("group", b.Group)
	return parsed, err
}

// Assign lists the devices that are plugged in, each with its block.
func (p *Plan) Assign() ([]match.Assigned, error) {
	tree, done, err := OpenTree(p.Root)
	if err != nil {
		return nil, err
	}
	defer done()

	devices, err := p.Plugged(tree)
	if err != nil {
		return nil, err
	}
	return p.Rules.Assign(devices, new(match.IDs)), nil
}

// Plugged lists the devices in a tree. A simulation that has not started yet has none.
func (p *Plan) Plugged(tree fs.FS) ([]sysfs.Device, error) {
	devices, err := sysfs.Scan(tree)
	if p.Root != "/" && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for i := range devices {
		if p.udev {
			sysfs.AddUdev(tree, &devices[i])
		}
	}
	return devices, err
}

// wants reports whether the block exposes the device's nodes of this kind.
func (b *Parsed) wants(d sysfs.Device, k sysfs.Kind) bool {
	if len(b.Nodes) == 0 {
		return d.ByDefault(k) || k == sysfs.USB && b.Libusb != nil && *b.Libusb
	}
	return slices.Contains(b.Nodes, string(k)) || slices.Contains(b.Nodes, string(k)+"?")
}

// needs returns the kinds of nodes that the device must have to be healthy.
func (b *Parsed) needs() (all []sysfs.Kind) {
	for _, k := range b.Nodes {
		if !strings.HasSuffix(k, "?") {
			all = append(all, sysfs.Kind(k))
		}
	}
	return all
}

// taskPath returns the directory of the nodes in the task.
func (b Block) taskPath(kind string) string {
	return cmp.Or(b.Path, path.Join("/dev", kind))
}

// InTask returns the mount's path in the task.
func (m Mount) InTask() string {
	return cmp.Or(m.TaskPath, m.HostPath)
}

// VariableName returns the prefix of a type's environment variables.
func VariableName(kind string) string {
	return "USB_" + Upper(kind)
}

// Upper converts a text to a valid part of a variable's name, in upper case.
func Upper(s string) string {
	return sysfs.Plain(strings.ToUpper(s), "")
}

// lookupID returns the id of a user (if what is "user") or a group, by number or by name, or -1 if name is empty.
func lookupID(what, name string) (int, error) {
	if name == "" {
		return -1, nil
	}
	if id, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(id), nil
	}
	if u, err := user.Lookup(name); what == "user" && err == nil {
		return strconv.Atoi(u.Uid)
	}
	if g, err := user.LookupGroup(name); what == "group" && err == nil {
		return strconv.Atoi(g.Gid)
	}
	return 0, fmt.Errorf("%s %q does not exist on this host: use an existing name, or a number", what, name)
}
