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
		all = append(all, plugin.Command{Name: c.name, Help: c.help, Run: c.main, Undoes: true})
	}
	return all
}

// command is one of them.
type command struct {
	name, help string
	usage      string // what follows the name
	about      string // sentences, for -h

	run   func(ctx context.Context, s *session, args []string) error
	least int // how many arguments there must be
	most  int
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
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// say writes a remark. Output is for what other programs read.
func (s *session) say(format string, args ...any) {
	fmt.Fprintln(s.err, plain.Line(fmt.Sprintf(format, args...), 0))
}

func (c command) main(ctx context.Context, argv []string) error {
	s := &session{out: os.Stdout, err: os.Stderr}
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
		return errors.New("only root may do this, since datasets are root's: use sudo")
	}
	if err := c.run(ctx, s, args); err != nil {
		return errors.New(plain.Line(strings.ReplaceAll(err.Error(), "\n", ": "), 0))
	}
	return nil
}
