// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/plugin"
)

// Command is nomad-driver-remote simulate.
func Command() plugin.Command {
	return plugin.Command{
		Name: "simulate",
		Help: "make a host of this machine, to try the plugin, until it is interrupted",
		Run:  func(ctx context.Context, args []string) error { return command(ctx, args, os.Stdin, os.Stdout) },

		Undoes: true,
	}
}

const help = `Makes a host of this machine: a private SSH server with its own key, users and
processes. It prints the host's block for the plugin's configuration, and ends the
host when it is interrupted. All files are in DIR, which must not exist.

  nomad-driver-remote simulate [options] DIR

With -commands it reads lines from standard input, and answers each with ok or what is
wrong: halt, boot (the host), kill, start (its SSH server), down, up (its link, which
needs -network).

`

func command(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	user := flags.String("user", User, "who tasks run as there: "+User+", without rights, or "+Root)
	var o Options
	flags.StringVar(&o.Name, "name", "simulated", "name of the endpoint, another one for each host")
	flags.StringVar(&o.Shell, "shell", "/bin/sh", "login shell")
	flags.BoolVar(&o.Network, "network", false, "with a network of its own")
	commands := flags.Bool("commands", false, "obey standard input")
	given, err := plugin.Parse(flags, args, help, out)
	if err != nil {
		return err
	}
	if len(given) != 1 {
		return fmt.Errorf("%d directories are given, one is needed: nomad-driver-remote simulate [options] DIR", len(given))
	}
	if *user != User && *user != Root {
		return fmt.Errorf("-user %s is not %s or %s", *user, User, Root)
	}
	h, err := Start(ctx, given[0], o)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, h.Block(*user))
	if err == nil {
		if *commands {
			go h.obey(ctx, in, out) // until the input or this process ends
		}
		<-ctx.Done()
	}
	return errors.Join(err, h.Stop())
}

// obey does what each line of its input says.
func (h *Host) obey(ctx context.Context, in io.Reader, out io.Writer) {
	known := map[string]func() error{
		"halt": h.Halt, "boot": func() error { return h.Boot(ctx) },
		"kill": h.KillServer, "start": func() error { return h.StartServer(ctx) },
		"down": h.LinkDown, "up": h.LinkUp,
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		answer := ok
		if do := known[lines.Text()]; do == nil {
			answer = fmt.Sprintf("%q is not a command", lines.Text())
		} else if err := do(); err != nil {
			answer = strings.ReplaceAll(err.Error(), "\n", " ")
		}
		_, _ = fmt.Fprintln(out, answer)
	}
}
