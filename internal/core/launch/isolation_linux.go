// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// isolate performs the steps that hide the host from the program. It runs as root, before the limits and the user are
// set. The order of the steps is:
//
//  1. network namespace: setns(CLONE_NEWNET)
//  2. IPC and UTS (host name) namespaces: unshare, or setns for a process that is added to a running task
//  3. mount namespace: unshare(CLONE_NEWNS), / made a slave, then the mounts
//
// Steps that affect only the calling thread suffice, since only this thread survives execve. The mount namespace of a
// running task is entered later: see enterMounts. Landlock comes last: see unveil.
func (l *launcher) isolate() *Error {
	if err := l.enterNetwork(); err != nil {
		return err
	}
	if err := l.ownNamespaces(); err != nil {
		return err
	}
	return l.exposeDevices()
}

// ownNamespaces creates the program's IPC and UTS namespaces, or enters those of a running task. The task may have
// replaced them by namespaces that it controls, so the launcher, still root, must trust nothing in them.
func (l *launcher) ownNamespaces() *Error {
	own := &l.spec.Command.Isolation
	if l.spec.Task != 0 {
		l.enter(StageIsolate)
		_, e := call(unix.SYS_SETNS, uintptr(l.spec.taskFD()), unix.CLONE_NEWIPC|unix.CLONE_NEWUTS)
		if e != 0 {
			return failed("enter the task's namespaces", e)
		}
		return nil
	}
	flags := uintptr(0)
	if own.IPC {
		flags |= unix.CLONE_NEWIPC
	}
	if own.Hostname != "" {
		flags |= unix.CLONE_NEWUTS
	}
	if flags == 0 {
		return nil
	}
	l.enter(StageIsolate)
	switch e := unshare(flags); e {
	case 0:
	case unix.EPERM:
		return refuse(e, "the task cannot be isolated: the agent needs CAP_SYS_ADMIN")
	default:
		return failed("create namespaces", e)
	}
	if own.Hostname == "" {
		return nil
	}
	name := []byte(own.Hostname)
	_, e := call(unix.SYS_SETHOSTNAME, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)))
	if e != 0 {
		return failed("set the host name "+quote(own.Hostname), e)
	}
	return nil
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
