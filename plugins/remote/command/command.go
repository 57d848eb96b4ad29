// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package command is what an operator does by hand: nomad-driver-remote list, stop and check. Their connections claim
// no run.
package command

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/agentconfig"
	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
)

// binary is the name of the plugin in an agent's configuration, which is that of its file.
const binary = "nomad-driver-remote"

// All are the commands.
func All() []plugin.Command {
	var all []plugin.Command
	for _, c := range []command{listCommand, stopCommand, checkCommand} {
		all = append(all, plugin.Command{Name: c.name, Help: c.help, Run: func(ctx context.Context, args []string) error {
			return c.with(ctx, &session{out: os.Stdout, err: os.Stderr}, args)
		}})
	}
	return all
}

// command is one of them. It has either an argument or the option -json.
type command struct {
	name, help string
	about      string // sentences, for -h
	argument   string
	run        func(ctx context.Context, s *session, argument string) error
}

// session is a call of a command.
type session struct {
	out, err io.Writer
	json     bool

	answers   func(context.Context) error
	endpoints []*endpoint // the chosen ones, in the order of their names
}

// with runs the command with these arguments.
func (c command) with(ctx context.Context, s *session, argv []string) error {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	path := flags.String("config", "/etc/nomad.d", "`PATH` of the agent's configuration, a file or a directory")
	name := flags.String("endpoint", "", "`NAME` of the only endpoint to look at")
	usage := plugin.Usage{
		Binary: binary, Command: c.name, Arguments: "[-config PATH] [-endpoint NAME] ", About: c.about,
	}
	if c.argument == "" {
		flags.BoolVar(&s.json, "json", false, "all of it as JSON, times in nanoseconds")
		usage.Arguments += "[-json]"
	} else {
		usage.Arguments, usage.Least, usage.Most = usage.Arguments+c.argument, 1, 1
	}
	args, err := usage.Parse(flags, argv, s.out)
	if err != nil {
		return err
	}
	if err := s.open(*path, *name); err != nil {
		return errors.New(sentence(err))
	}
	for _, e := range s.endpoints {
		defer e.host.Close()
	}
	return c.run(ctx, s, strings.Join(args, ""))
}

// open reads the configuration as an agent does.
func (s *session) open(path, name string) error {
	block, err := agentconfig.Block(path, binary, os.Args[0])
	if err != nil {
		return fmt.Errorf("the agent's configuration can't be used: %w", err)
	}
	config, err := schema.Of[driver.Config]().DecodeAgent(block)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	hosts, answers := driver.Endpoints(config)
	s.answers = answers
	names := slices.Sorted(maps.Keys(hosts))
	for _, n := range names {
		if name == "" || name == n {
			s.endpoints = append(s.endpoints, &endpoint{Name: n, host: hosts[n]})
		}
	}
	switch {
	case len(names) == 0:
		return fmt.Errorf("%s: no endpoint is configured", path)
	case len(s.endpoints) == 0:
		return fmt.Errorf("endpoint %q is not known: there is \"%s\"", name, strings.Join(names, "\", \""))
	}
	return nil
}

// controls are those characters for a terminal that JSON does not escape.
var controls = regexp.MustCompile(`[\x{7f}-\x{9f}]`)

// print writes a value as JSON.
func (s *session) print(value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "%s\n", controls.ReplaceAllFunc(text, func(c []byte) []byte {
		return fmt.Appendf(nil, `\u%04x`, []rune(string(c))[0])
	}))
	return err
}

// sentence is the message of an error, which may have a host's words in it, on one line.
func sentence(err error) string { return plain.Line(err.Error(), 0) }
