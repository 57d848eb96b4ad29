// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command pictures makes the pictures in docs/images anew: terminals in which mage targets run, as animated SVG, and
// Nomad's web UI, as PNG. It has a lab of its own, which it removes: mage docs:pictures.
package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/gobuild"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// drawing is the program that draws, with the packages it needs.
//
//go:embed draw.mjs package.json package-lock.json
var drawing embed.FS

// terminals are the targets to record, by the name of the picture.
var terminals = []struct {
	name   string
	rows   uint16
	target string
}{
	{"hello", 16, "lab:run plugins/exec-lite/example/hello.nomad.hcl"}, // it leaves the lab up
	{"exec-lite", 30, "demo:exec-lite"},
	{"python", 30, "demo:python"},
	{"usb", 30, "demo:usb"},
	{"remote", 30, "demo:remote"},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second interrupt ends the process
	if err := pictures(ctx); err != nil {
		fmt.Fprintln(os.Stderr, term.Wrap("pictures: "+err.Error(), term.Width, "  "))
		os.Exit(1)
	}
}

// studio is a temporary directory with a lab and the drawing program.
type studio struct {
	dir, root, images string
	steps             *term.Printer
}

func pictures(ctx context.Context) (err error) {
	s := studio{steps: term.New(os.Stdout)}
	if s.root, err = build.Root("."); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "outrider-pictures-"); err != nil {
		return err
	}
	defer os.RemoveAll(s.dir)
	s.images = filepath.Join(s.root, "docs", "images")
	err = errors.Join(
		os.Chmod(s.dir, 0o755), // tasks run as other users
		os.CopyFS(s.dir, drawing),
		os.MkdirAll(s.images, 0o755),
		os.Setenv("LAB_DIR", filepath.Join(s.dir, "lab")),
	)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.run(context.WithoutCancel(ctx), "go", "tool", "mage", "lab:down")) }()
	for _, do := range []struct {
		what string
		step func(context.Context) error
	}{
		{"Fetching the packages that draw", s.fetch},
		{"Compiling what is recorded", s.compile},
		{"Recording terminals", s.record},
		{"Taking screenshots of Nomad's UI", s.screenshots},
	} {
		end := s.steps.Step("%s", do.what)
		err := do.step(ctx)
		if end(err, ""); err != nil {
			return err
		}
	}
	return nil
}

func (s *studio) fetch(ctx context.Context) error {
	for _, program := range []string{"npm", "node", "chromium"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: apt-get install npm chromium fonts-dejavu-core", err)
		}
	}
	return s.run(ctx, "npm", "ci", "--prefix", s.dir, "--ignore-scripts", "--no-audit", "--no-fund")
}

// compile fills Go's cache, and finds Nomad.
func (s *studio) compile(ctx context.Context) error {
	demos := gobuild.Build{Dir: s.root, Args: []string{"-o", s.dir + "/demos/", "./lab/demo/..."},
		Progress: s.steps.Progress}
	if err := demos.Run(ctx); err != nil {
		return err
	}
	return errors.Join(s.run(ctx, "go", "tool", "mage", "lab:up"), s.run(ctx, "go", "tool", "mage", "lab:down"))
}

func (s *studio) record(ctx context.Context) error {
	for _, t := range terminals {
		s.steps.Progress("%s", t.target)
		cmd := exec.Command("go", append([]string{"tool", "mage"}, strings.Fields(t.target)...)...)
		cmd.Dir = s.root
		cmd.Env = append(os.Environ(), "TERM=xterm-256color", "NO_COLOR=")
		c, err := record(ctx, cmd, "go tool mage "+t.target, t.rows)
		if err != nil {
			return fmt.Errorf("failed to record %s: %w", t.target, err)
		}
		file := filepath.Join(s.dir, t.name+".cast")
		if err := c.save(file); err != nil {
			return err
		}
		if err := s.draw(ctx, "cast", file, filepath.Join(s.images, t.name+".svg")); err != nil {
			return err
		}
	}
	return nil
}

func (s *studio) screenshots(ctx context.Context) error {
	const lab = "go tool mage lab:up -usb=sim && go tool mage lab:run plugins/usb/example/serial.nomad.hcl && " +
		"! go tool mage lab:run plugins/python/example/crash.nomad.hcl"
	if err := s.run(ctx, "sh", "-c", lab); err != nil {
		return err
	}
	a, err := agent.Open(ctx, os.Getenv("LAB_DIR"))
	if err != nil {
		return err
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		return err
	}
	return s.draw(ctx, "ui", a.Address(), s.images, chromium)
}

func (s *studio) draw(ctx context.Context, args ...string) error {
	return s.run(ctx, "node", append([]string{filepath.Join(s.dir, "draw.mjs")}, args...)...)
}

// run runs a program in the checkout. The error has its output.
func (s *studio) run(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = s.root
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("failed to run %s: %w\n%s", cmd, err, out)
	}
	return nil
}
