// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import "golang.org/x/sys/unix"

// isolate performs all steps that hide the host from the program. It runs as root, before limits and user, in
// this order:
//
//  1. network namespace: setns(CLONE_NEWNET)
//  2. mount namespace: unshare(CLONE_NEWNS), / made a slave, then the mounts
//
// Steps that affect only the calling thread suffice, since only this thread survives execve. The mount namespace of a
// running task is entered later: see enterMounts. Landlock comes last: see unveil.
func (l *launcher) isolate() *Error {
	if err := l.enterNetwork(); err != nil {
		return err
	}
	return l.exposeDevices()
}

// enterNetwork joins the network namespace that Nomad (or a CNI plugin) has created.
func (l *launcher) enterNetwork() *Error {
	path := l.spec.Command.NetworkNamespace
	if path == "" {
		return nil
	}
	l.enter(StageNetwork)
	fd, e := open(unix.AT_FDCWD, path, unix.O_RDONLY)
	if e != 0 {
		return failed("open network namespace "+quote(path), e)
	}
	defer closeFD(fd)
	switch _, e := call(unix.SYS_SETNS, uintptr(fd), unix.CLONE_NEWNET); e {
	case 0:
		return nil
	case unix.EPERM:
		return refuse(e, "network namespace "+quote(path)+" cannot be entered: the agent must run as root for it")
	case unix.EINVAL:
		return refuse(e, quote(path)+" is not a network namespace")
	default:
		return failed("enter network namespace "+quote(path), e)
	}
}
