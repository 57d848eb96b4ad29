// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/term"

	"github.com/outrider-dev/outrider/lab/agent"
)

// Shell opens a shell where the tasks run (the lab's container or this machine), with nomad on its PATH and NOMAD_ADDR
// set. It ignores the shell's exit status.
func (l *Lab) Shell(ctx context.Context) error {
	a, err := l.open(ctx)
	if err != nil {
		return err
	}
	sh := cmp.Or(os.Getenv("SHELL"), "/bin/sh")
	if a.Info().Runtime == agent.Container {
		sh = "bash"
	}
	cmd, err := In(a, term.IsTerminal(int(os.Stdin.Fd())), nil, sh)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, l.out, l.errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("failed to run a shell: %w", err)
	}
	return nil
}

// In returns a command that runs where the agent's tasks run. nomad is on its PATH, and its environment has NOMAD_ADDR
// and env. Set terminal to give a command in a container a TTY.
func In(a agent.Agent, terminal bool, env []string, argv ...string) (*exec.Cmd, error) {
	env = append(env, "NOMAD_ADDR="+a.Address())
	if a.Info().Runtime == agent.Container {
		args := []string{"exec", "-i"}
		if terminal {
			args = append(args, "-t")
		}
		for _, v := range env {
			args = append(args, "-e", v)
		}
		cmd := exec.Command("docker", append(append(args, a.Info().Container), argv...)...)
		if cmd.Err != nil {
			return nil, fmt.Errorf("failed to reach the lab's container: the docker command is missing: %w", cmd.Err)
		}
		return cmd, nil
	}
	// Put a link named nomad on the PATH: the name of the cached binary includes its version.
	bin := filepath.Join(a.Info().Dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return nil, fmt.Errorf("failed to put nomad on the PATH: %w", err)
	}
	err := os.Symlink(a.Info().Binary, filepath.Join(bin, "nomad"))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("failed to put nomad on the PATH: %w", err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = slices.Concat(os.Environ(), env, []string{"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH")})
	return cmd, nil
}
