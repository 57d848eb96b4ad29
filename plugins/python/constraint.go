package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/outrider-dev/outrider/internal/core/plugin"

	"github.com/outrider-dev/outrider/plugins/python/inline"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/pep440"
)

// constraintCommand prints what keeps a job from nodes that have no interpreter for it: the driver sees
// a program only when Nomad has chosen the node.
func constraintCommand() plugin.Command {
	return plugin.Command{
		Name: "constraint",
		Help: "print the constraint block that a script, a project or a lock needs",
		Run:  func(args []string) error { return constraint(os.Stdout, args) },
	}
}

// constraint prints the block of all that is named: files, and specifiers such as ">=3.11".
func constraint(w io.Writer, args []string) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return errors.New("usage: constraint FILE|VERSIONS…, where FILE is a script, pyproject.toml, pylock.toml or uv.lock, and VERSIONS such as \">=3.11,<3.14\"")
	}
	var wanted pep440.Specifier
	var from []string
	for _, arg := range args {
		text, isFile, err := requiresPython(arg)
		if err != nil {
			return err
		}
		s, err := pep440.Parse(text)
		switch {
		case err != nil && isFile:
			return fmt.Errorf("%s: requires-python: %w", arg, err)
		case err != nil:
			return fmt.Errorf("there is no file %s, and %w", arg, err)
		case isFile && text == "":
			from = append(from, fmt.Sprintf("%s, which has no requires-python", arg))
		case isFile:
			from = append(from, fmt.Sprintf("%s: requires-python = %q", arg, text))
		default:
			from = append(from, text)
		}
		wanted = wanted.And(s)
	}
	c, err := interpreter.ConstraintFor(wanted)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, ", "), err)
	}
	for _, f := range from {
		fmt.Fprintf(w, "# from %s\n", strings.Join(strings.Fields(f), " ")) // whatever a file has in it
	}
	if c == nil {
		fmt.Fprintln(w, "# no constraint is needed: each interpreter of a node with the python driver fits")
		return nil
	}
	for _, minor := range c.Partial {
		fmt.Fprintf(w, "# not every release of %s fits: the driver looks at that when the task starts\n", minor)
	}
	if c.Open {
		fmt.Fprintln(w, "# newer versions would fit too: add them when nodes have them")
	}
	fmt.Fprint(w, c.Block())
	return nil
}

// maxProject is more than any project or lock file has.
const maxProject = 64 << 20

// requiresPython is what a file says of the interpreter, "" if it says nothing. What is no file is
// taken for a specifier.
func requiresPython(arg string) (text string, isFile bool, err error) {
	info, err := os.Stat(arg)
	switch {
	case errors.Is(err, os.ErrNotExist) && !strings.ContainsRune(arg, '/'):
		return arg, false, nil
	case err != nil:
		return "", false, err
	case !info.Mode().IsRegular():
		return "", false, fmt.Errorf("%s is no file: name the script or the lock itself", arg)
	case info.Size() > maxProject:
		return "", false, fmt.Errorf("%s is longer than %d MiB", arg, maxProject>>20)
	}
	source, err := os.ReadFile(arg)
	if err != nil {
		return "", false, err
	}
	if filepath.Ext(arg) == ".toml" || filepath.Ext(arg) == ".lock" {
		text, err = requiresPythonOfTOML(arg, source)
		return text, true, err
	}
	m, err := inline.Read(source)
	if err != nil {
		return "", true, fmt.Errorf("%s: %w", arg, err)
	}
	if m == nil {
		return "", true, nil
	}
	return m.RequiresPython, true, nil
}

// requiresPythonOfTOML reads it where pyproject.toml has it (PEP 621), or pylock.toml (PEP 751) and
// the locks of uv.
func requiresPythonOfTOML(name string, source []byte) (string, error) {
	var file struct {
		RequiresPython string `toml:"requires-python"`
		Project        struct {
			RequiresPython string `toml:"requires-python"`
		} `toml:"project"`
	}
	if err := toml.Unmarshal(source, &file); err != nil {
		var bad *toml.DecodeError
		if errors.As(err, &bad) {
			line, _ := bad.Position()
			return "", fmt.Errorf("%s: line %d: %s", name, line, strings.TrimPrefix(bad.Error(), "toml: "))
		}
		return "", fmt.Errorf("%s: %w", name, err)
	}
	if filepath.Base(name) == "pyproject.toml" {
		return file.Project.RequiresPython, nil
	}
	return file.RequiresPython, nil
}
