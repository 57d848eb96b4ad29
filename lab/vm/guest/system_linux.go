// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/vm/wire"
)

// path is where the guest's own programs are looked for.
const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// system does the rest of an init's work after the mounts: the kernel's modules, the disk, cgroup controllers,
// loopback, limits.
func system(c wire.Config) error {
	release, err := release()
	if err != nil {
		return err
	}
	modules := filepath.Join("/lib/modules", release)
	if err := os.MkdirAll(modules, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(c.Modules, modules, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("failed to put the kernel's modules in their place: %w", err)
	}
	if err := makeNodes(); err != nil {
		return err
	}
	if err := modprobe("configfs"); err != nil {
		return err
	}
	if err := mountAll([]mount{{"configfs", "/sys/kernel/config", "configfs", plain, ""}}); err != nil {
		return err
	}

	if c.Disk {
		if err := modprobe("virtio_blk", "ext4"); err != nil {
			return err
		}
		if err := mountAll([]mount{{"/dev/vda", "/disk", "ext4", 0, ""}}); err != nil { // as vm.DiskMount
			return err
		}
	}
	if err := delegate("/sys/fs/cgroup"); err != nil {
		return err
	}
	if err := os.Mkdir(slice, 0o755); err != nil {
		return err
	}
	if err := delegate(slice); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("failed to start the loopback network: %w", err)
	}
	if err := unix.Sethostname([]byte("vm")); err != nil {
		return err
	}
	// systemd's defaults for what it starts
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 524288})
}

func release() (string, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "", err
	}
	return unix.ByteSliceToString(u.Release[:]), nil
}

// delegate enables all controllers of a cgroup for its children.
func delegate(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range bytes.Fields(b) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), append([]byte("+"), c...), 0); err != nil {
			return fmt.Errorf("failed to enable the controller %s: %w", c, err)
		}
	}
	return nil
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// modprobe loads modules, by name or by the alias of a device.
func modprobe(names ...string) error {
	cmd := exec.Command("/sbin/modprobe", append([]string{"-a", "-q", "-b"}, names...)...)
	cmd.Env = []string{path}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("modprobe %s: %w: %s", names, err, bytes.TrimSpace(out))
	}
	return nil
}
