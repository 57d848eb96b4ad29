// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/plugin"

	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// constraintCommand prints a constraint that keeps a job from nodes without an interpreter for it. The driver sees a
// program only after Nomad has chosen the node.
func constraintCommand() plugin.Command {
	return plugin.Command{
		Name: "constraint",
		Help: "print the constraint block that a script, a project or a lock needs",
		Run:  func(_ context.Context, args []string) error { return constraint(os.Stdout, args) },
	}
}

// constraint prints the block for all arguments together: files, and specifiers such as ">=3.11".
func constraint(w io.Writer, args []string) error {
	args, err := plugin.Usage{
		Binary: "nomad-driver-python", Command: "constraint", Arguments: "FILE|VERSIONS…", Least: 1, Most: math.MaxInt,
		About: "Prints the constraint block for all arguments together. FILE is a script, pyproject.toml,\n" +
			"pylock.toml or uv.lock; VERSIONS are such as \">=3.11,<3.14\".",
	}.Parse(flag.NewFlagSet("constraint", flag.ContinueOnError), args, w)
	if err != nil {
		return err
	}
	var wanted interpreter.Specifier
	var from []string
	for _, arg := range args {
		says, words, err := statement(arg)
		if err != nil {
			return err
		}
		from = append(from, words)
		wanted = wanted.And(says)
	}
	c, err := interpreter.ConstraintFor(wanted)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, ", "), err)
	}
	for _, f := range from {
		fmt.Fprintf(w, "# from %s\n", strings.Join(strings.Fields(f), " ")) // without line breaks of a file
	}
	if c == nil {
		fmt.Fprintln(w, "# no constraint is needed: each interpreter of a node with the python driver fits")
		return nil
	}
	for _, minor := range c.Partial {
		fmt.Fprintf(w, "# not every release of %s fits: the driver checks that when the task starts\n", minor)
	}
	if c.Open {
		fmt.Fprintln(w, "# newer versions would fit too: add them when nodes have them")
	}
	fmt.Fprint(w, c.Block())
	return nil
}

// maxProject bounds a file, in bytes.
const maxProject = 64 << 20

// statement is the versions that an argument allows, and a comment about it. An argument that is not a file is a
// specifier.
func statement(arg string) (says interpreter.Specifier, words string, err error) {
	text, err := requirement.RequiresPython(arg, func(name string) ([]byte, error) {
		return taskFiles{dirs: []string{"."}}.read(name, maxProject)
	})
	switch {
	case errors.Is(err, os.ErrNotExist) && !strings.ContainsRune(arg, '/'):
		if says, err = interpreter.ParseSpecifier(arg); err != nil {
			err = fmt.Errorf("there is no file %s, and %w", arg, err)
		}
		return says, arg, err
	case err != nil || text == "":
		return says, arg + ", which has no requires-python", err
	}
	if says, err = interpreter.ParseSpecifier(text); err != nil {
		err = fmt.Errorf("%s: requires-python: %w", arg, err)
	}
	return says, fmt.Sprintf("%s: requires-python = %q", arg, text), err
}
