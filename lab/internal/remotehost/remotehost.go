// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package remotehost starts the host that "nomad-driver-remote simulate" makes of this machine.
package remotehost

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// Host is one that runs.
type Host struct {
	Process task.Identity // with it everything on the host ends
	Block   string        // the host's part of the plugin's configuration

	commands io.Writer // of the process that started it
	answers  *bufio.Scanner
}

// Start starts a host whose files are in dir, which must not exist. It returns when the host answers. The host outlives
// this process. Env are more variables of its process, and what it says goes to a file beside dir.
func Start(ctx context.Context, plugin, dir, name string, env ...string) (h Host, err error) {
	return start(ctx, env, plugin, "simulate", "-commands", "-name", name, dir)
}

// StartOnNetwork starts one whose link can be down.
func StartOnNetwork(ctx context.Context, plugin, dir, name string, env ...string) (Host, error) {
	return start(ctx, env, plugin, "simulate", "-commands", "-network", "-name", name, dir)
}

func start(ctx context.Context, env []string, argv ...string) (h Host, err error) {
	dir := argv[len(argv)-1]
	log, err := os.Create(filepath.Clean(dir) + ".log")
	if err != nil {
		return h, err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // ^C in this terminal is not for the host
	out, err := cmd.StdoutPipe()
	if err != nil {
		return h, err
	}
	if h.commands, err = cmd.StdinPipe(); err != nil {
		return h, err
	}
	if err := cmd.Start(); err != nil {
		return h, fmt.Errorf("failed to start the host: %w", err)
	}
	end := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer end()
	var block strings.Builder
	h.answers = bufio.NewScanner(out)
	for h.answers.Scan() {
		fmt.Fprintln(&block, h.answers.Text())
		if h.answers.Text() == "}" {
			h.Block = block.String()
			h.Process, err = task.Identify(cmd.Process.Pid)
			go cmd.Wait() // ends with the host, or with this program before it
			return h, err
		}
	}
	err = cmd.Wait()
	why, _ := os.ReadFile(log.Name())
	_ = os.Remove(log.Name())
	return h, errors.Join(ctx.Err(), fmt.Errorf("%s (%w)", strings.TrimSpace(string(why)), err))
}

// Do has the host do a command of "nomad-driver-remote simulate -commands". Only the process that started it can, and
// one call at a time.
func (h Host) Do(command string) error {
	if _, err := fmt.Fprintln(h.commands, command); err != nil {
		return err
	}
	if !h.answers.Scan() {
		return errors.Join(h.answers.Err(), errors.New("the host has ended"))
	}
	if answer := h.answers.Text(); answer != "ok" {
		return fmt.Errorf("%s: %s", command, answer)
	}
	return nil
}

// Option is the value of an option in the host's block.
func (h Host) Option(name string) string {
	found := regexp.MustCompile(`(?m)^ *` + name + ` += +\[?"?([^"\n]*)`).FindStringSubmatch(h.Block)
	if found == nil {
		return ""
	}
	return found[1]
}
