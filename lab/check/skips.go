// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/wheel"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/rootfs"
)

//go:embed skips.txt
var skipList string

// conditions are what may be missing on a machine, and what else lets a test be skipped.
var conditions = map[string]func() bool{
	"not-root":       func() bool { return os.Geteuid() != 0 },
	"agent-not-root": func() bool { return !agent.Privileged() },
	"no-memory-cgroup": func() bool {
		return !agent.Privileged() || !exists("/sys/fs/cgroup/memory/memory.limit_in_bytes",
			"/sys/fs/cgroup/cgroup.controllers")
	},
	"no-cgroup-v1": func() bool {
		return !exists("/sys/fs/cgroup/*/cgroup.clone_children",
			"/sys/fs/cgroup/memory/tasks")
	},
	"no-cgroup-v2": func() bool {
		return !exists("/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/unified/cgroup.controllers")
	},
	"no-docker":  func() bool { return !exists("/var/run/docker.sock") && os.Getenv("DOCKER_HOST") == "" },
	"no-podman":  func() bool { return os.Geteuid() != 0 || !onPath("podman") },
	"no-busybox": func() bool { return !exists("/bin/busybox") },
	"no-fuse":    func() bool { return !exists("/dev/fuse") },
	"no-btrfs": func() bool {
		known, _ := os.ReadFile("/proc/filesystems")
		return !onPath("mkfs.btrfs") || !strings.Contains(string(known), "btrfs") &&
			exec.Command("modprobe", "--dry-run", "btrfs").Run() != nil
	},
	"no-strace": func() bool { return !onPath("strace") },
	"no-libusb": func() bool { return build.Builder{Root: "."}.Libusb(context.Background()) != nil },
	"no-umockdev": func() bool {
		return !exists("/usr/lib*/libumockdev-preload.so.0", "/usr/lib/*/libumockdev-preload.so.0")
	},
	"no-rootfs":    func() bool { return rootfs.Missing() != nil },
	"no-nix":       func() bool { return !onPath("nix") },
	"no-qemu":      func() bool { return !onPath("qemu-system-x86_64") },
	"no-qemu-user": func() bool { return !onPath("qemu-aarch64-static") },
	"no-uv": func() bool {
		if os.Geteuid() != 0 {
			return wheel.FindUV(nil) == ""
		}
		// build_user's default, who may not reach root's own
		return wheel.FindUV(&syscall.Credential{Uid: 79999, Gid: 79999}) == ""
	},
	"no-user-namespaces": func() bool {
		cmd := exec.Command("unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/tmp")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return cmd.Run() != nil
	},
	"no-cross": func() bool {
		return !onPath("aarch64-linux-gnu-gcc") || !onPath("x86_64-linux-gnu-gcc") || !onPath("pkg-config") ||
			!onPath("apt-get") || !exists("/usr/aarch64-linux-gnu/include/stdlib.h", "/usr/x86_64-linux-gnu/include/stdlib.h")
	},
	"no-zfs-fuse":   func() bool { return !exists("/dev/fuse") || !exists("/usr/sbin/zfs-fuse", "/sbin/zfs-fuse") },
	"no-shells":     func() bool { return !onPath("fish") || !onPath("tcsh") },
	"no-sshd":       func() bool { return !onPath("sshd") && !exists("/usr/sbin/sshd", "/sbin/sshd") },
	"no-rpm":        func() bool { return !onPath("rpm") || !onPath("dpkg-deb") },
	"no-ansible":    func() bool { return !onPath("ansible-playbook") },
	"no-shellcheck": func() bool { return !onPath("shellcheck") },
	"no-pypy":       func() bool { return !exists("/usr/bin/pypy3") },
	"no-pip":        func() bool { return exec.Command("/usr/bin/python3", "-I", "-m", "pip", "--version").Run() != nil },
	"no-python311": func() bool {
		return exec.Command("/usr/bin/python3", "-I", "-c", "import sys; sys.exit(sys.version_info < (3, 11))").Run() != nil
	},
	"no-rich": func() bool { return exec.Command("/usr/bin/python3", "-c", "import click, rich").Run() != nil },
	"sample":  func() bool { return os.Getenv(sampleVar) != "" },
	"any":     func() bool { return true },
}

func onPath(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

func exists(globs ...string) bool {
	for _, g := range globs {
		if found, err := filepath.Glob(g); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

// skips reads the lines of skips.txt that hold here.
func skips() ([]rule, error) {
	known := func(condition string) bool { return conditions[condition] != nil }
	rules, err := parseRules("skips.txt", skipList, known)
	return slices.DeleteFunc(rules, func(r rule) bool { return known(r.word) && !conditions[r.word]() }), err
}
