package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/outrider-dev/outrider/lab/agent"
)

// Shell opens a shell in the lab's container, or on the host one that has nomad on
// its PATH and NOMAD_ADDR set. The shell's exit code is not an error of the lab.
func (l *Lab) Shell(ctx context.Context) error {
	a, err := l.open(ctx)
	if err != nil {
		return err
	}
	i := a.Info()
	cmd := hostShell(a)
	if i.Runtime == agent.Container {
		docker, err := exec.LookPath("docker")
		if err != nil {
			return fmt.Errorf("failed to open a shell in the container: the docker command is missing: %w", err)
		}
		flags := []string{"exec", "-i"}
		if st, err := os.Stdin.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
			flags = append(flags, "-t")
		}
		cmd = exec.CommandContext(ctx, docker, append(flags, i.Container, "bash")...)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, l.out, l.errOut
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("failed to run a shell: %w", err)
	}
	return nil
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
