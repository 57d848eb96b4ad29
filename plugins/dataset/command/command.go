// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package command has the operator's commands: nomad-device-dataset list, snapshot, adopt and so on.
// They also work while no agent runs.
package command

import (
	"context"
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

// All returns the commands.
func All() []plugin.Command {
	var all []plugin.Command
	for _, c := range commands {
		all = append(all, plugin.Command{Name: c.name, Help: c.help, Run: c.main, Undoes: true})
	}
	return all
}

var commands = []command{
	listCommand, checkCommand, snapshotCommand, rollbackCommand, adoptCommand, trashCommand,
}

type command struct {
	name, help string
	usage      string // arguments in the usage line
	about      string // description that -h prints

	run   func(ctx context.Context, s *session, args []string) error
	least int // minimum number of arguments
	most  int // maximum number of arguments
}

// at is a test hook, called at the steps where a test may kill the process.
var at = func(string) {}

// session has the flags and the outputs of one call of a command.
type session struct {
	out, err io.Writer
	file     string // path of the operator's file
	json     bool   // print the result as JSON
}

// answer prints the result of a command. If the flag -json is set, it encodes value; otherwise it calls text.
func (s *session) answer(value any, text func(io.Writer)) error {
	if !s.json {
		text(s.out)
		return nil
	}
	return plain.JSON(s.out, value)
}

// say writes a message for the operator to stderr, because programs read stdout.
func (s *session) say(format string, args ...any) {
	fmt.Fprintln(s.err, plain.Line(fmt.Sprintf(format, args...), 0))
}

func (c command) main(ctx context.Context, argv []string) error {
	return c.in(ctx, &session{out: os.Stdout, err: os.Stderr}, argv)
}

func (c command) in(ctx context.Context, s *session, argv []string) error {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.StringVar(&s.file, "file", policy.Path, "the operator's file")
	flags.BoolVar(&s.json, "json", false, "print the answer as JSON, sizes in bytes")
	args, err := plugin.Usage{
		Binary: "nomad-device-dataset", Command: c.name, Arguments: c.usage, About: c.about, Least: c.least, Most: c.most,
	}.Parse(flags, argv, s.out)
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("this command needs root: use sudo")
	}
	if err := c.run(ctx, s, args); err != nil {
		return errors.New(plain.Line(strings.ReplaceAll(err.Error(), "\n", ": "), 0))
	}
	return nil
}
