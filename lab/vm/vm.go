// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package vm runs commands in a virtual machine that has Debian's kernel and this machine's files: any program of this
// machine runs there, at its own path.
//
// It is for tests that need more from the kernel than a container or a laptop offers: cgroup v2 without v1, USB devices
// to plug and unplug (package gadget), landlock, modules, root. The VM uses KVM if that works; otherwise QEMU emulates
// the processor.
//
// Start boots a VM in a few seconds. Files that are written in the VM stay in its memory and are lost when it ends;
// only Options.Disk outlives the VM. A VM ends with Close, or at the latest with this process.
package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd"
)

// DiskMount is the mount point, in the VM, of the disk in Options.Disk.
const DiskMount = "/disk"

// Options describe one VM.
type Options struct {
	Memory int // in MiB; 0 means 2048. Files that are written in the VM use it too.
	CPUs   int // 0 means 2, or 1 if this machine has only one

	// Disk is the path of a file that becomes the VM's disk; it is created if it is missing. Another VM can use the
	// files below DiskMount after this VM was closed or killed. If Disk is empty, the VM has no disk.
	Disk string

	// ZFS adds OpenZFS to the kernel, and the programs zfs and zpool to /usr/sbin. They are built once, which takes
	// minutes.
	ZFS bool

	// Env has additional variables for the environment of commands.
	Env []string

	// Silence is the time after which a VM that does not answer is killed, because emulation can hang. Default: 5 minutes.
	Silence time.Duration

	// Progress is called with the state of long steps. May be nil.
	Progress func(format string, args ...any)
}

// VM is a running machine. Its methods are safe for concurrent use.
type VM struct {
	env     []string // Options.Env
	machine *machine
	client  *ssh.Client
	runs    atomic.Int64 // number of commands so far
}

// Start boots a VM and returns when commands can be run in it. The VM ends when ctx ends.
func Start(ctx context.Context, o Options) (*VM, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("the VM needs an amd64 machine, but this machine is %s", runtime.GOARCH)
	}
	if err := o.fill(ctx); err != nil {
		return nil, err
	}
	qemu, err := findQEMU()
	if err != nil {
		return nil, err
	}
	if _, err := sbin("modprobe"); err != nil { // the VM runs this machine's modprobe
		return nil, fmt.Errorf("%w (apt-get install kmod)", err)
	}
	k, err := findKernel(ctx, o.Progress)
	if err != nil {
		return nil, err
	}
	var zfs string
	if o.ZFS {
		if zfs, err = findZFS(ctx, k, o.Progress); err != nil {
			return nil, err
		}
	}
	keys, err := os.MkdirTemp("", "outrider-vm-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(keys) // not needed once the VM has booted
	server, err := sshd.Write(keys, 22, "MaxSessions 1000", "LoginGraceTime 0", "LogLevel ERROR")
	if err != nil {
		return nil, err
	}
	initrd, err := initramfs(k, o, server, keys)
	if err != nil {
		return nil, err
	}
	for _, a := range accelerators() {
		var v *VM
		if v, err = boot(ctx, qemu, k, initrd, a, o, server); err == nil {
			err = v.loadZFS(ctx, zfs)
			if err != nil {
				v.Kill()
				return nil, err
			}
			return v, nil
		}
		if a.remember == nil || ctx.Err() != nil {
			break
		}
		o.Progress("emulating the processor, because %s does not work here: %v", a.name, err)
		a.remember()
	}
	return nil, err
}

func (o *Options) fill(ctx context.Context) error {
	if o.Memory == 0 {
		o.Memory = 2048
	}
	if o.CPUs == 0 {
		o.CPUs = min(2, runtime.NumCPU())
	}
	if o.Silence == 0 {
		o.Silence = 5 * time.Minute
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	if o.Disk != "" {
		return makeDisk(ctx, o.Disk)
	}
	return nil
}

const diskSize = "4G" // the file is sparse

// makeDisk formats the disk under a temporary name and then renames it. If a call is interrupted, a later call does not
// mistake the incomplete file for a disk.
func makeDisk(ctx context.Context, path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	mkfs, err := sbin("mkfs.ext4")
	if err != nil {
		return fmt.Errorf("failed to create the VM's disk: %w (apt-get install e2fsprogs)", err)
	}
	made := path + ".new"
	defer os.Remove(made)
	err = os.WriteFile(made, nil, 0o600)
	if err == nil {
		_, err = output(ctx, mkfs, "-q", "-F", "-E", "lazy_itable_init=1", made, diskSize)
	}
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		return fmt.Errorf("failed to create the VM's disk: %w", err)
	}
	return nil
}

// boot starts one machine and waits until it answers.
func boot(ctx context.Context, qemu string, k kernel, initrd []byte, a accelerator, o Options, server sshd.Server) (
	_ *VM, err error,
) {
	secret, err := os.ReadFile(server.KeyFile)
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePrivateKey(secret)
	if err != nil {
		return nil, err
	}
	m, err := startMachine(ctx, qemu, k, initrd, a, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			m.kill()
		}
	}()
	m.port.SetDeadline(time.Now().Add(a.patience))
	config := &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(), // the other end is our own QEMU
	}
	conn, channels, requests, err := ssh.NewClientConn(m.port, port, config)
	if ctx.Err() != nil { // the machine ended because ctx ended
		err = ctx.Err()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("not ready within %v", a.patience)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to boot the VM with %s: %w", a.name, m.explain(err))
	}
	m.port.SetDeadline(time.Time{})
	v := &VM{env: o.Env, machine: m, client: ssh.NewClient(conn, channels, requests)}
	go v.watch(o.Silence)
	return v, nil
}

// watch kills the machine if it stops answering, so that pending calls fail. It returns when the machine ends.
func (v *VM) watch(silence time.Duration) {
	for {
		answered := make(chan error, 1)
		go func() {
			_, _, err := v.client.SendRequest("keepalive@openssh.com", true, nil)
			answered <- err
		}()
		select {
		case <-v.machine.done:
			return
		case err := <-answered:
			if err != nil {
				return // the connection has failed, so the machine has ended
			}
		case <-time.After(silence):
			fmt.Fprintf(v.machine.qemuOut, "killed, because the VM has not answered for %v", silence)
			v.machine.kill()
			return
		}
		time.Sleep(silence / 10)
	}
}

// Console returns the last output of the kernel and of the first process.
func (v *VM) Console() string { return v.machine.console.String() }

// Close makes the VM sync its disk and shut down, and frees its resources. A second Close is not an error.
func (v *VM) Close() error {
	v.client.Close() // makes the VM sync its disk and switch itself off
	err := v.machine.end(offTime)
	v.machine.close()
	return err
}

// offTime is how long a VM may take to switch itself off: long enough for emulation on a busy machine.
const offTime = time.Minute

// Kill ends the VM immediately, as a power cut does.
func (v *VM) Kill() {
	v.machine.kill()
	v.client.Close()
}
