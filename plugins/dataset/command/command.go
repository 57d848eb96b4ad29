// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package command is what a person does by hand: nomad-device-dataset list, snapshot, adopt
// and so on. Each command works on its own, also where no agent runs.
package command

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/internal/core/plugin"

	"github.com/outrider-dev/outrider/plugins/dataset/policy"
)

// All are the commands.
func All() []plugin.Command {
	var all []plugin.Command
	for _, c := range []command{
		listCommand, checkCommand, snapshotCommand, rollbackCommand, adoptCommand, trashCommand,
	} {
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

// at is called at steps between which a process may be killed, for tests.
var at = func(string) {}

// session is where a command reads and writes.
type session struct {
	out, err io.Writer
	file     string // the operator's
	json     bool   // the answer is for another program
}

// answer writes the answer as JSON if that was asked for, or else what text writes.
func (s *session) answer(value any, text func(io.Writer)) error {
	if !s.json {
		text(s.out)
		return nil
	}
	encoder := json.NewEncoder(s.out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// say writes a remark. Output is for what other programs read.
func (s *session) say(format string, args ...any) {
	fmt.Fprintln(s.err, plain.Line(fmt.Sprintf(format, args...), 0))
}

func (c command) run(ctx context.Context, argv []string) error {
	return c.with(ctx, &session{out: os.Stdout, err: os.Stderr}, argv)
}

// with runs the command with these arguments.
func (c command) with(ctx context.Context, s *session, argv []string) error {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.StringVar(&s.file, "file", policy.Path, "the operator's file")
	flags.BoolVar(&s.json, "json", false, "print the answer as JSON, sizes in bytes")
	run := c.options(flags)
	args, err := plugin.Usage{
		Binary: "nomad-device-dataset", Command: c.name, Arguments: c.usage, About: c.about, Least: c.least, Most: c.most,
	}.Parse(flags, argv, s.out)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("only root may do this, since datasets are root's: use sudo")
	}
	if err := run(ctx, s, args); err != nil {
		return &sentence{err}
	}
	return nil
}

// sentence is an error on one line, of what can be printed.
type sentence struct{ error }

func (s *sentence) Error() string {
	return plain.Line(strings.ReplaceAll(s.error.Error(), "\n", ": "), 0)
}
func (s *sentence) Unwrap() error { return s.error }
