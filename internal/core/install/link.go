// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// link is the plugin's file in the agent's directory of host volume plugins: a link to the
// one in the plugin directory, so that both are always of one version. It is there from its
// first installation to the last uninstallation: without it, an agent that starts drops every
// volume that the plugin has made.
type link struct {
	*command
	dir  *os.Root // nil if it is missing
	path string
	to   string

	there bool // with the right target
	other bool // this plugin's file, or a link to one elsewhere, which install replaces
	usual bool // in a directory that install may have made
}

// link looks at the link, and refuses what is not this plugin's. It is nil for a plugin that
// has none.
func (c *command) link(t *target) (*link, error) {
	if c.HostVolumePlugin == "" {
		return nil, nil
	}
	l := &link{
		command: c, path: filepath.Join(t.hostVolumes, c.HostVolumePlugin), to: filepath.Join(t.pluginDir, c.Binary),
		usual: t.hostVolumes == t.defaultHostVolumes(),
	}
	var err error
	if l.dir, err = c.open(t.hostVolumes); err != nil {
		return nil, fmt.Errorf("the directory of host volume plugins can't be used: %w", err)
	}
	if l.dir == nil {
		return l, nil
	}
	info, err := l.dir.Lstat(c.HostVolumePlugin)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return l, nil
	case err != nil:
	case info.Mode()&fs.ModeSymlink != 0:
		var to string
		if to, err = l.dir.Readlink(c.HostVolumePlugin); err == nil && filepath.Base(to) != c.Binary {
			err = fmt.Errorf("%s is a link to %s, and not to this plugin: remove it, or move it away", l.path, to)
		}
		l.there, l.other = to == l.to, to != l.to
	default:
		_, _, err = c.binary(l.dir, c.HostVolumePlugin)
		l.other = true
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *link) close() {
	if l != nil && l.dir != nil {
		l.dir.Close()
	}
}

func (l *link) install() (changed bool, err error) {
	switch {
	case l == nil:
		return false, nil
	case l.there:
		l.say("%s is there already", l.path)
		return false, nil
	}
	if l.dir == nil {
		if l.dir, err = l.openPluginDir("directory of host volume plugins", filepath.Dir(l.path)); err != nil {
			return false, err
		}
	}
	return true, l.do(func() error { return putLink(l.dir, l.HostVolumePlugin, l.to) }, "Linked %s to it", l.path)
}

// uninstall removes what install made.
func (l *link) uninstall() error {
	switch {
	case l == nil:
		return nil
	case l.other:
		l.say("%s stays: install did not make it", l.path)
		return nil
	case !l.there:
		return nil
	}
	remove := func() error {
		return errors.Join(l.dir.Remove(l.HostVolumePlugin), sweep(l.dir, l.HostVolumePlugin), syncDir(l.dir))
	}
	if err := l.do(remove, "Removed %s", l.path); err != nil || !l.usual {
		return err
	}
	return l.removeEmpty(filepath.Dir(l.path), l.dir, l.HostVolumePlugin)
}

// putLink makes a link in one step: there is no moment without one.
func putLink(dir *os.Root, name, to string) error {
	temp := fmt.Sprintf("%s%d", tempPrefix(name), os.Getpid())
	err := sweep(dir, name)
	if err == nil {
		err = dir.Symlink(to, temp)
	}
	if err == nil {
		if err = dir.Rename(temp, name); err != nil {
			err = errors.Join(err, ignoreMissing(dir.Remove(temp)))
		}
	}
	if err != nil {
		return fmt.Errorf("failed to link %s: %w", filepath.Join(dir.Name(), name), err)
	}
	return syncDir(dir)
}
