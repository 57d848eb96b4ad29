// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package rootfs runs a bare Debian with Nomad as HashiCorp's package lays it out, for tests of commands that operators
// type: `dpkg -i`, `systemctl restart nomad`, `nomad job run`.
//
// A Root has its own processes, mounts, network and host name, and shares the machine's cgroups. In its own network,
// its agent has the default ports: the commands need no address, and several roots can run at the same time.
package rootfs

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse"
	"github.com/outrider-dev/outrider/lab/agent"
)

//go:embed init.sh
var initScript string

// layout has the files that HashiCorp's package and systemd would install: path, mode, content.
var layout = []struct {
	path string
	mode os.FileMode
	text string
}{
	{"etc/nomad.d/nomad.hcl", 0o640, nomadConfig},
	{"etc/nomad.d/quick.hcl", 0o640, quickConfig},
	{"usr/bin/systemctl", 0o755, systemctl},
	{"usr/bin/journalctl", 0o755, journalctl},
	{"usr/sbin/zfs", 0o755, zfsfuse.Script},
	{"usr/bin/sudo", 0o755, "#!/bin/sh\nexec \"$@\"\n"},
	{"usr/bin/nomad", 0o755, ""}, // init.sh mounts the program here
	{"etc/resolv.conf", 0o644, ""},
}

// Root is a root file system in which an init runs.
type Root struct {
	Dir string // its path on the machine, to add or read files

	init *exec.Cmd
}

// New unpacks a root file system in a new directory, and starts its process 1. Nomad's agent is installed, but runs
// only after Run(ctx, "systemctl start nomad").
func New(ctx context.Context, dir, nomad string, progress func(format string, args ...any)) (*Root, error) {
	base, err := tarball(ctx, progress)
	if err != nil {
		return nil, err
	}
	r := &Root{Dir: dir}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	if err := r.boot(ctx, base, nomad); err != nil {
		return nil, errors.Join(fmt.Errorf("failed to boot the root file system: %w", err), r.Close())
	}
	return r, nil
}

func (r *Root) boot(ctx context.Context, base, nomad string) error {
	out, err := exec.CommandContext(ctx, "tar", "-xf", base, "-C", r.Dir, "--numeric-owner").CombinedOutput()
	if err != nil {
		return fmt.Errorf("failed to run tar: %w\n%s", err, out)
	}
	zfs := filepath.Join(r.Dir, "usr/sbin/zfs")
	if err := os.Rename(zfs, zfs+zfsfuse.Suffix); err != nil {
		return err
	}
	for _, f := range layout {
		path := filepath.Join(r.Dir, f.path)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(f.text), f.mode),
			os.Chmod(path, f.mode))
		if err != nil {
			return err
		}
	}
	r.init = exec.Command("sh", "-c", initScript, "init", r.Dir, nomad)
	r.init.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
		syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
	r.init.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	var stderr bytes.Buffer
	r.init.Stderr = &stderr
	if _, err = r.init.StdinPipe(); err != nil { // if this process is killed, the end of the pipe ends process 1
		return err
	}
	ready, err := r.init.StdoutPipe()
	if err != nil {
		return err
	}
	if err := r.init.Start(); err != nil {
		r.init = nil
		return err
	}
	if out, _ := io.ReadAll(ready); string(out) != "ready\n" {
		return fmt.Errorf("process 1 ended: %s", stderr.String())
	}
	return nil
}

// Enter returns the beginning of a command line. Append a command to it, to run the command in the root.
func (r *Root) Enter() []string {
	return []string{"nsenter", "--target", strconv.Itoa(r.init.Process.Pid), "--mount", "--pid", "--net", "--uts", "--ipc",
		"--root", "--wdns=/root"}
}

// Run runs commands in the root, in a shell that ends at the first error, and returns their combined output.
func (r *Root) Run(ctx context.Context, commands string) (string, error) {
	enter := append(r.Enter(), "bash", "-euo", "pipefail", "-c", commands)
	cmd := exec.CommandContext(ctx, enter[0], enter[1:]...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "USER=root",
		"LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "NO_COLOR=1", "NOMAD_CLI_NO_COLOR=1"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out.String())
	}
	return out.String(), err
}

// Close kills the root's processes, which also ends its mounts and network, and removes its cgroups and directory.
func (r *Root) Close() error {
	var err error
	if r.init != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = agent.KillNamespace(ctx, r.init.Process, filepath.Join(r.Dir, "opt/nomad/data"), func() error {
			_ = r.init.Wait() // an error is expected: process 1 was killed, or had ended
			return nil
		})
		r.init = nil
	}
	return errors.Join(err, owndir.RemoveAll(r.Dir))
}
