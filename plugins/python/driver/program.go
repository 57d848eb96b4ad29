// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// inlineCode is the file in the task directory that holds the program of the option "code". Because it is a file,
// tracebacks show the program's lines, and multiprocessing can import it.
const inlineCode = "local/inline_code.py"

// program is a task's program: the interpreter's arguments that run it, and the requirements that it declares.
type program struct {
	args     []string
	metadata requirement.Script
}

// newProgram finds a task's program.
func newProgram(t *TaskConfig, files taskFiles) (program, error) {
	if t.Module != "" {
		return program{args: []string{"-m", t.Module}}, nil
	}
	if t.Code != "" {
		p := program{args: []string{filepath.Join(files.dirs[len(files.dirs)-1], inlineCode)}}
		err := p.read("code", []byte(t.Code))
		return p, err
	}
	path, info, err := files.find(t.Script)
	if err != nil {
		return program{}, fmt.Errorf("failed to find script: %w", err)
	}
	p := program{args: []string{path}}
	if info.Size() > requirement.MaxScript || !info.Mode().IsRegular() {
		return p, nil // a large file may be a zip application; python reports any other problem
	}
	content, err := files.read(path, requirement.MaxScript)
	if err != nil {
		return program{}, fmt.Errorf("failed to read script: %w", err)
	}
	err = p.read(t.Script, content)
	return p, err
}

// read parses the metadata in a program's source. A file with a NUL byte is a zip application, which has none.
func (p *program) read(name string, source []byte) error {
	if bytes.ContainsRune(source, 0) {
		return nil
	}
	var err error
	if p.metadata, err = requirement.ReadScript(source); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// writeInlineCode writes the file inlineCode with the rights of the task's user. It follows no link that leads out of
// the task directory.
func writeInlineCode(taskDir, code string, u *task.User) error {
	root, err := os.OpenRoot(taskDir)
	if err != nil {
		return fmt.Errorf("failed to write code: %w", err)
	}
	defer root.Close()
	err = asUser(u, func() error {
		if err := root.Remove(inlineCode); err != nil && !os.IsNotExist(err) {
			return err
		}
		f, err := root.OpenFile(inlineCode, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // never an existing link or FIFO
		if err != nil {
			return err
		}
		_, err = f.WriteString(code)
		return errors.Join(err, f.Close())
	})
	if err != nil {
		return fmt.Errorf("failed to write code: %w", err)
	}
	return nil
}

// maxRequirements is the maximum size of a requirements file or a lock, in bytes.
const maxRequirements = 4 << 20

// readRequirements returns the requirements of the job and of the program together. With a lock, it ignores the
// program's requirements, because a lock is complete.
func readRequirements(t *TaskConfig, files taskFiles, p program) (*requirement.Set, error) {
	read := func(name string) ([]byte, error) { return files.read(name, maxRequirements) }
	choice := requirement.Choice{Extras: t.Extras, Groups: t.DepGroups}
	if t.Lock != "" {
		return choice.Lock(t.Lock, read)
	}
	declared, err := p.metadata.Set()
	if err != nil {
		return nil, err
	}
	var listed *requirement.Set
	switch {
	case t.isProject():
		listed, err = choice.Project(t.Requirements[0], read)
	case len(t.Requirements) == 1 && isFileName(t.Requirements[0]):
		listed, err = requirement.File(t.Requirements[0], read)
	default:
		listed, err = requirement.List(t.Requirements)
	}
	if err != nil {
		return nil, err
	}
	return listed, listed.Add(declared)
}

// isProject reports whether the option "requirements" names a project.
func (t *TaskConfig) isProject() bool {
	return len(t.Requirements) == 1 && path.Base(t.Requirements[0]) == "pyproject.toml"
}

// isFileName reports whether an element of the option "requirements" is a file name: it has a slash, or ends in .txt or
// .in, and is neither "name @ https://…" nor the URL of a wheel.
func isFileName(text string) bool {
	if strings.Contains(text, "@") || strings.Contains(text, "://") {
		return false
	}
	return strings.Contains(text, "/") || path.Ext(text) == ".txt" || path.Ext(text) == ".in"
}
