// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/term"

	"github.com/outrider-dev/outrider/lab/agent"
)

// Shell opens a shell where the tasks run (the lab's container or this machine), with nomad on its PATH and NOMAD_ADDR
// set. The shell's exit code is not an error of the lab.
func (l *Lab) Shell(ctx context.Context) error {
	a, err := l.open(ctx)
	if err != nil {
		return err
	}
	cmd := hostShell(a)
	if a.Info().Runtime == agent.Container {
		docker, err := exec.LookPath("docker")
		if err != nil {
			return fmt.Errorf("failed to open a shell in the container: the docker command is missing: %w", err)
		}
		cmd = exec.CommandContext(ctx, docker, containerShell(a, term.IsTerminal(int(os.Stdin.Fd())))...)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, l.out, l.errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("failed to run a shell: %w", err)
	}
	return nil
}

// containerShell are docker's arguments. The image has nomad on its PATH.
func containerShell(a agent.Agent, terminal bool) []string {
	args := []string{"exec", "-i", "-e", "NOMAD_ADDR=" + a.Address()}
	if terminal {
		args = append(args, "-t")
	}
	return append(args, a.Info().Container, "bash")
}

func hostShell(a agent.Agent) *exec.Cmd {
	sh := os.Getenv("SHELL")
	if sh == "" {
		sh = "/bin/sh"
	}
	cmd := exec.Command(sh)
	// a link, since the cached binary's name has its version in it
	bin := filepath.Join(a.Info().Dir, "bin")
	if os.MkdirAll(bin, 0o755) == nil {
		os.Symlink(a.Info().Binary, filepath.Join(bin, "nomad"))
	}
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+a.Address(),
		"PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	return cmd
}
