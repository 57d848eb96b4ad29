// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package command is what a person does by hand: nomad-driver-remote list, adopt, release,
// stop, gc and check. Each command works on its own, also where no agent runs.
package command

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/internal/core/agentconfig"
	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

const program = "nomad-driver-" + driver.Name

// All are the commands.
func All() []plugin.Command {
	var all []plugin.Command
	for _, c := range []command{listCommand, adoptCommand, releaseCommand, stopCommand, gcCommand, checkCommand} {
		all = append(all, plugin.Command{Name: c.name, Help: c.help, Run: c.run, Undoes: true})
	}
	return all
}

// command is one of them.
type command struct {
	name, help string
	usage      string // what follows the name
	about      string // sentences, for -h

	// options declares flags, and returns what to run with the arguments besides them.
	options func(f *flag.FlagSet) func(ctx context.Context, s *session, args []string) error
	least   int // how many arguments there must be
	most    int
}

// session is where a command reads and writes, and what the agent's configuration has.
type session struct {
	in       io.Reader
	connect  func(driver.Endpoint, time.Duration) (endpoint.Endpoint, error) // as driver.Open
	out, err io.Writer
	path     string // of the agent's configuration
	config   driver.Config
	all      *driver.Endpoints
}

func (c command) run(ctx context.Context, argv []string) error {
	return c.with(ctx, &session{in: os.Stdin, out: os.Stdout, err: os.Stderr, connect: driver.Open}, argv)
}

// with runs the command with these arguments.
func (c command) with(ctx context.Context, s *session, argv []string) error {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.StringVar(&s.path, "config", "/etc/nomad.d", "`file` or directory of the agent's configuration")
	run := c.options(flags)
	args, err := plugin.Usage{
		Binary: program, Command: c.name, Arguments: c.usage, About: c.about, Least: c.least, Most: c.most,
	}.Parse(flags, argv, s.out)
	if err != nil {
		return err
	}
	if err := s.open(); err != nil {
		return err
	}
	return errors.Join(run(ctx, s, args), s.all.Close())
}

// open reads the agent's configuration. It connects to nothing.
func (s *session) open() error {
	body, err := agentconfig.Block(s.path, program, os.Args[0])
	if err != nil {
		return fmt.Errorf("%w (-config names another file or directory)", err)
	}
	if s.config, err = schema.Of[driver.Config]().DecodeAgent(body); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	s.all = driver.NewEndpoints(s.config, s.connect, hclog.NewNullLogger())
	return nil
}

// names are the endpoints that are given, or all.
func (s *session) names(given []string) ([]string, error) {
	for _, name := range given {
		if _, ok := s.config.Endpoints[name]; !ok {
			_, err := s.all.Get(name)
			return nil, err
		}
	}
	if len(given) > 0 {
		return given, nil
	}
	if len(s.config.Endpoints) == 0 {
		return nil, fmt.Errorf("%s has no endpoint", s.path)
	}
	return s.all.Names(), nil
}

// confirm asks before something that can't be undone.
func (s *session) confirm(ctx context.Context, yes bool, question string) error {
	if yes {
		return nil
	}
	fmt.Fprintf(s.err, "%s [y/N] ", question)
	answered := make(chan string, 1)
	go func() { // ends with the input, or with the process
		answer, _ := bufio.NewReader(s.in).ReadString('\n')
		answered <- answer
	}()
	answer := ""
	select {
	case answer = <-answered:
	case <-ctx.Done():
	}
	if answer == "" {
		fmt.Fprintln(s.err)
		return errors.New("nobody answered, so nothing was done: -yes answers")
	}
	if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
		return errors.New("nothing was done")
	}
	return nil
}
