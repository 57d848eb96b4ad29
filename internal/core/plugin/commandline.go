// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// commandLine runs the command that argv names, for a user in a terminal, and returns the exit code.
func (p Plugin) commandLine(argv []string, stdout, stderr io.Writer) int {
	binary := filepath.Base(argv[0])
	if len(argv) < 2 {
		p.help(binary, stdout)
		return 0
	}
	switch argv[1] {
	case "help", "-h", "-help", "--help":
		p.help(binary, stdout)
		return 0
	case "version", "-v", "-version", "--version":
		info, _ := debug.ReadBuildInfo()
		fmt.Fprint(stdout, versionText(binary, Version(), info))
		return 0
	case "options":
		fmt.Fprint(stdout, p.Options())
		return 0
	case "config":
		fmt.Fprint(stdout, p.AgentConfig(binary))
		return 0
	}
	for _, c := range p.Commands {
		if c.Name != argv[1] {
			continue
		}
		ctx, stop := context.Background(), func() {}
		if c.Undoes {
			ctx, stop = signal.NotifyContext(ctx, os.Interrupt, unix.SIGTERM, unix.SIGHUP)
			context.AfterFunc(ctx, stop)
		}
		err := c.Run(ctx, argv[2:])
		stop()
		if err != nil && !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(stderr, "%s %s: %v\n", binary, c.Name, err)
			return 1
		}
		return 0
	}
	fmt.Fprintf(stderr, "%s: unknown command %q: see \"%s help\"\n", binary, argv[1], binary)
	return 2
}

// Usage describes the arguments of a command.
type Usage struct {
	Binary, Command string
	Arguments       string // such as "ENDPOINT [TASK]"
	About           string // what the command does, in full sentences, for -h
	Least, Most     int    // limits on the number of arguments
}

// Parse parses the options and arguments of a command, in any order, and returns the arguments. For -h it writes the
// help to out, and returns flag.ErrHelp. Every other error contains the usage. It is an error if there are fewer than
// Least or more than Most arguments, or if one of them is empty.
func (u Usage) Parse(flags *flag.FlagSet, line []string, out io.Writer) (args []string, err error) {
	usage := u.Command + " " + u.Arguments
	flags.SetOutput(io.Discard) // errors are returned, not printed
	flags.Usage = func() {}
	for {
		err := flags.Parse(line)
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintf(out, "%s %s\n\n%s\n\n", u.Binary, usage, strings.TrimSpace(u.About))
			flags.SetOutput(out)
			flags.PrintDefaults()
			return nil, err
		}
		if err != nil {
			return nil, fmt.Errorf("%w; usage: %s", err, usage)
		}
		if flags.NArg() == 0 {
			break
		}
		args, line = append(args, flags.Arg(0)), flags.Args()[1:]
	}
	if len(args) < u.Least || len(args) > u.Most || slices.Contains(args, "") {
		return nil, fmt.Errorf("usage: %s", usage)
	}
	return args, nil
}

// pluginDir is the plugin directory that the help suggests. The directory of this binary, perhaps a user's downloads,
// would be unsafe: the agent runs every program in its plugin directory, as root.
const pluginDir = "/opt/nomad/plugins"

func (p Plugin) help(binary string, w io.Writer) {
	fmt.Fprintf(w, `%s %s: %s

This is a plugin for HashiCorp Nomad. The Nomad agent starts it. Copy it to a directory
that contains only plugins and that only root can change, add this to the agent's
configuration, and restart the agent:

plugin_dir = %q

%s
`, binary, Version(), p.Summary, pluginDir, p.AgentConfig(binary))
	if p.Device != nil {
		fmt.Fprint(w, "Then \"nomad node status -self -verbose\" lists its devices as <vendor>/<type>/<name>, and a "+
			"task\ngets one by its type:\n\nresources {\n  device \"TYPE\" {}\n}\n")
	} else {
		fmt.Fprintf(w, "Then \"nomad node status -self\" lists the driver, and a task uses it with:\n\ndriver = %q\n", p.Name)
	}
	fmt.Fprintf(w, "\nCommands:\n")
	for _, c := range append(p.Commands[:len(p.Commands):len(p.Commands)],
		Command{Name: "config", Help: "print the block for the agent's configuration, with every option in a comment"},
		Command{Name: "options", Help: "print every option, as Markdown"},
		Command{Name: "version", Help: "print the version and the commit"},
		Command{Name: "help", Help: "print this help"},
	) {
		fmt.Fprintf(w, "  %-10s %s\n", c.Name, c.Help)
	}
}

// AgentConfig returns the plugin block of an agent's configuration for a binary with this file name. It contains every
// option. Options that are not required are commented out.
func (p Plugin) AgentConfig(binary string) string {
	return fmt.Sprintf("plugin %q {\n  config {\n%s  }\n}\n", binary, p.Config.Example("    "))
}

// Options returns the tables of all options as Markdown, for the command "options" and for the
// documentation.
func (p Plugin) Options() string {
	text := "## Plugin configuration\n\n" + schema.Table(p.Config.Doc())
	if p.TaskConfig != nil {
		text += "\n## Task configuration\n\n" + schema.Table(p.TaskConfig.Doc())
	}
	return text
}
