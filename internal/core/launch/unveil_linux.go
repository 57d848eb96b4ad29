// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/landlock"
	"github.com/outrider-dev/outrider/internal/core/task"
)

const noRuleset landlock.Ruleset = -1

// unveilDefaults are the paths of task.Unveil.Defaults. Each list begins with the modes of its paths. Any path may be
// missing. The lists include all paths of Nomad's exec2 driver, so that its jobs run unchanged.
var unveilDefaults = [][]string{
	{
		"rx", "/bin", "/lib", "/lib64", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/libexec", "/usr/local/bin",
		"/usr/local/lib", "/usr/local/lib64",
	},
	{ // data that programs need
		"r", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/terminfo",
		"/usr/share/common-licenses", "/usr/share/locale", "/usr/share/terminfo", "/usr/share/zoneinfo",
	},
	{ // names of users, hosts and services
		"r", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/passwd", "/etc/protocols", "/etc/resolv.conf",
		"/etc/services",
	},
	{ // certificates of Debian, Red Hat, SUSE and Alpine
		"r", "/etc/pki/ca-trust/extracted", "/etc/pki/tls/cacert.pem", "/etc/pki/tls/certs", "/etc/ssl/ca-bundle.pem",
		"/etc/ssl/cert.pem", "/etc/ssl/certs", "/usr/share/ca-certificates",
	},
	{ // properties of the machine, and basic devices
		"r", "/dev/random", "/dev/urandom", "/dev/zero", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
		"/proc/sys/kernel/cap_last_cap", "/proc/sys/kernel/ngroups_max", "/proc/sys/kernel/version",
		"/proc/sys/vm/overcommit_memory", "/sys/devices/system/cpu",
	},
	{"w", "/dev/log"},
	{"rw", "/dev/full", "/dev/null", "/dev/tty"},
}

// unveil returns a Landlock ruleset that allows the program its paths, or noRuleset if the program is not confined.
// It opens the paths with the user's permissions, so it reveals nothing that the user could not reach.
func (l *launcher) unveil() (landlock.Ruleset, *Error) {
	u := l.spec.Command.Unveil
	if u == nil {
		return noRuleset, nil
	}
	l.enter(StageUnveil)
	abi := landlock.ABI()
	if u.Strict && abi < landlock.Complete {
		return noRuleset, refuse(unix.EOPNOTSUPP, "the task cannot be confined: unveil = \"strict\" needs version "+
			strconv.Itoa(landlock.Complete)+" of Landlock (Linux 6.2), and this kernel has version "+strconv.Itoa(abi))
	}
	if abi == 0 {
		return noRuleset, nil
	}
	ruleset, e := landlock.NewRuleset(landlock.Modes(abi, "rwxc", true) | landlock.MakeDevices)
	if e != 0 {
		return noRuleset, failed("create a Landlock ruleset", e)
	}
	paths := u.Paths
	for _, list := range unveilDefaults {
		for _, path := range list[1:] {
			if u.Defaults {
				paths = append(paths, task.UnveiledPath{Path: path, Modes: list[0], Optional: true})
			}
		}
	}
	for _, p := range paths {
		err := allow(ruleset, abi, p)
		if err != nil {
			return noRuleset, err
		}
	}
	for fd := range 3 { // a program may open /dev/stdout, which can be a FIFO outside of its paths
		e := ruleset.Allow(fd, landlock.Modes(abi, "rw", false))
		if e != 0 && e != unix.EBADFD { // a pipe or socket
			return noRuleset, failed("allow the standard streams by Landlock", e)
		}
	}
	return ruleset, nil
}

// allow adds a path to a ruleset, unless the user cannot reach it or it is optional and missing.
func allow(ruleset landlock.Ruleset, abi int, p task.UnveiledPath) *Error {
	var fd int
	var e syscall.Errno
	if p.Author {
		fd, e = open(unix.AT_FDCWD, p.Path, unix.O_PATH)
	} else {
		fd, e = openByRootsLinks(p.Path)
	}
	missing := e == unix.ENOENT || e == unix.ENOTDIR
	switch {
	case e == unix.EACCES, missing && p.Optional:
		return nil
	case missing:
		return refuse(e, "unveil: path "+quote(p.Path)+" does not exist")
	case e == unix.ELOOP:
		return refuse(e, "unveil: path "+quote(p.Path)+" contains too many links, or one that does not "+
			"belong to root")
	case e != 0:
		return failed("open "+quote(p.Path)+" of unveil", e)
	}
	defer closeFD(fd)
	its, e := look(fd)
	if e == 0 {
		e = ruleset.Allow(fd, landlock.Modes(abi, p.Modes, its.kind == unix.S_IFDIR))
	}
	if e == unix.ENOMSG { // none of the modes applies to a file
		e = 0
	}
	if e != 0 {
		return failed("unveil "+quote(p.Path), e)
	}
	return nil
}

// openByRootsLinks opens an absolute path (O_PATH). Users other than root may be able to change directories on the
// path, so openByRootsLinks follows only links that belong to root. At any other link it returns ELOOP.
func openByRootsLinks(path string) (int, syscall.Errno) {
	at, e := open(unix.AT_FDCWD, "/", unix.O_PATH)
	if e != 0 {
		return -1, e
	}
	const maxLinks = 40 // as in path_resolution(7)
	for links := 0; path != ""; {
		var name string
		name, path, _ = strings.Cut(path, "/")
		if name == "" {
			continue
		}
		next, e := open(at, name, unix.O_PATH|unix.O_NOFOLLOW)
		if e != 0 {
			closeFD(at)
			return -1, e
		}
		its, e := look(next)
		if e == 0 && its.kind != unix.S_IFLNK {
			closeFD(at)
			at = next
			continue
		}
		links++
		var content string
		if e == 0 {
			content, e = readlinkAt(next, "")
		}
		closeFD(next)
		if e == 0 && (its.uid != 0 || links > maxLinks) {
			e = unix.ELOOP
		}
		if e == 0 && strings.HasPrefix(content, "/") {
			closeFD(at)
			at, e = open(unix.AT_FDCWD, "/", unix.O_PATH)
		}
		if e != 0 {
			closeFD(at)
			return -1, e
		}
		path = content + "/" + path
	}
	return at, 0
}
