// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd"
	"github.com/outrider-dev/outrider/lab/agent"
)

// measureRemote compares remote with raw_exec, whose tasks each run ssh. This machine is also the host. All processes
// below the agent are counted, including ssh.
func (b *bench) measureRemote(ctx context.Context) error {
	keys, dir := filepath.Join(b.dir, "sshd"), filepath.Join(b.dir, "host")
	ports, err := agent.FreePorts(1)
	if err == nil {
		err = os.Mkdir(keys, 0o700)
	}
	if err != nil {
		return err
	}
	server, err := sshd.Write(keys, ports[0])
	if errors.Is(err, sshd.ErrMissing) {
		log.Print("remote is not measured: ", err)
		return nil
	}
	if err != nil {
		return err
	}
	cmd := exec.Command(server.Args[0], server.Args[1:]...)
	err = cmd.Start()
	if err != nil {
		return err
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	err = wait(ctx, "the SSH server", func() (bool, error) {
		conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(server.Port)))
		if err != nil {
			return false, nil //nolint:nilerr // the server does not listen yet
		}
		return true, conn.Close()
	})
	if err != nil {
		return err
	}
	defer endAll(sleeper())
	ssh := []string{"/usr/bin/ssh", "-q", "-F", "none", "-i", server.KeyFile, "-p", strconv.Itoa(server.Port),
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "root@127.0.0.1"}
	return (&contest{
		bench: b, pair: [2]string{"remote", "raw_exec with ssh"}, tasks: b.remote,
		plugins: []agent.Plugin{{Binary: b.binaries["remote"], Config: server.Endpoint("box", dir, "root")}},
		config: map[string]any{"endpoint": map[string]any{"box": map[string]any{
			"dir": dir, "ssh": map[string]any{"host": "127.0.0.1", "port": server.Port, "user": "root",
				"key_file": server.KeyFile, "host_keys": []string{server.HostKey}},
		}}},
		of: [2]func(command []string) map[string]any{
			func(command []string) map[string]any {
				return map[string]any{"command": command[0], "args": command[1:], "endpoint": "box",
					"on_drain": "stop", "on_lost": "restart"} // without an API, the plugin cannot ask why a task is stopped
			},
			func(command []string) map[string]any {
				return asIs(append(slices.Clone(ssh), "'"+strings.Join(command, "' '")+"'")) // quoted for the host's shell
			},
		},
	}).measure(ctx)
}

// endAll kills the processes with these arguments. A command that ssh runs without a terminal continues after ssh ends.
func endAll(args []string) {
	for _, pid := range testsupport.Processes(func(of []string) bool { return slices.Equal(of, args) }) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
