// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd"
	"github.com/outrider-dev/outrider/lab/agent"
)

// measureRemote compares remote with tasks of raw_exec that each run ssh. Both ends are this machine. All processes
// below the agent are counted, including ssh.
func (b *bench) measureRemote(ctx context.Context) error {
	server, stop, err := b.startSSH(ctx)
	if errors.Is(err, sshd.ErrMissing) {
		b.Notes = append(b.Notes, "remote is not measured: "+err.Error()+".")
		return nil
	}
	if err != nil {
		return err
	}
	defer stop()
	defer endAll(sleeper())
	dir := filepath.Join(b.dir, "host")
	ssh := []string{"/usr/bin/ssh", "-q", "-F", "none", "-i", server.KeyFile, "-p", strconv.Itoa(server.Port),
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "root@127.0.0.1"}
	return (&contest{
		bench: b, pair: [2]string{"remote", "raw_exec with ssh"}, tasks: b.remote, state: dir,
		plugins: []agent.Plugin{{Binary: b.binaries["remote"], Config: server.Endpoint("box", dir, "root")}},
		config: map[string]any{"endpoint": map[string]any{"box": map[string]any{
			"dir": dir, "ssh": map[string]any{"host": "127.0.0.1", "port": server.Port, "user": "root",
				"key_file": server.KeyFile, "host_keys": []string{server.HostKey}},
		}}},
		of: [2]func(command []string) map[string]any{
			func(command []string) map[string]any {
				config := asIs(command)
				config["endpoint"] = "box"
				config["on_drain"], config["on_lost"] = "stop", "restart" // no API to look up the reason of a stop
				return config
			},
			func(command []string) map[string]any {
				return asIs(append(slices.Clone(ssh), "'"+strings.Join(command, "' '")+"'")) // for the host's shell
			},
		},
	}).measure(ctx)
}

// startSSH starts a server. The caller stops it.
func (b *bench) startSSH(ctx context.Context) (_ sshd.Server, stop func(), err error) {
	ports, err := agent.FreePorts(1)
	if err != nil {
		return sshd.Server{}, nil, err
	}
	dir := filepath.Join(b.dir, "sshd")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return sshd.Server{}, nil, err
	}
	server, err := sshd.Write(dir, ports[0])
	if err != nil {
		return server, nil, err
	}
	cmd := exec.Command(server.Args[0], server.Args[1:]...)
	if err := cmd.Start(); err != nil {
		return server, nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // "signal: killed"
	}
	err = wait(ctx, 50*time.Millisecond, func() (bool, error) {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(server.Port)))
		if err != nil {
			return false, nil //nolint:nilerr // not yet
		}
		return true, conn.Close()
	})
	return server, stop, err
}

// endAll kills the processes with these arguments: a command that ssh started without a terminal outlives its ssh.
func endAll(args []string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && string(commandLine(pid)) == strings.Join(args, "\x00")+"\x00" {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
