// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/outrider-dev/outrider/lab/internal/gotool"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// Lint runs golangci-lint over every module and the magefile, with the settings of .golangci.yml; actionlint over the
// workflows; and shellcheck over the scripts.
func Lint(ctx context.Context, root string) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	p := term.New(os.Stdout)
	programs := map[string]string{}
	for _, name := range []string{"golangci-lint", "actionlint"} {
		end := p.Step("Building %s, if it is not in Go's cache", name)
		program, err := gotool.Path(ctx, root, name)
		end(err, "")
		if err != nil {
			return err
		}
		programs[name] = program
	}
	shellcheck, err := exec.LookPath("shellcheck")
	if err != nil {
		return errors.New("shellcheck is not installed: apt-get install shellcheck, or see https://www.shellcheck.net")
	}
	var failed []error
	for _, l := range []struct {
		name string
		run  func() error
	}{
		{"golangci-lint", func() error { return lint(ctx, root, programs["golangci-lint"]) }},
		{"actionlint", func() error { return lintWorkflows(ctx, root, programs["actionlint"], shellcheck) }},
		{"shellcheck", func() error { return lintScripts(ctx, root, shellcheck) }},
	} {
		end := p.Step("%s", l.name)
		err := l.run()
		end(err, "no findings")
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

func lint(ctx context.Context, root, program string) error {
	modules, err := Modules(ctx, root)
	if err != nil {
		return err
	}
	root, err = filepath.Abs(root)
	if err != nil {
		return err
	}
	// findings in a cache that checkouts share would name files of another checkout
	env := append(goEnv(ctx, root), "GOLANGCI_LINT_CACHE="+filepath.Join(root, "bin", ".golangci-lint"))
	args := []string{"run", "--config", filepath.Join(root, ".golangci.yml"), "--build-tags=mage",
		"--path-mode=abs", "--allow-parallel-runners", "--timeout=15m", "--"}
	for _, dir := range modules {
		args = append(args, filepath.Join(dir, "..."))
	}
	if out, err := output(ctx, env, root, program, args...); err != nil {
		return fmt.Errorf("golangci-lint: %w\n%s", err, out)
	}
	return nil
}

// lintWorkflows checks the workflows, and the scripts in them.
func lintWorkflows(ctx context.Context, root, actionlint, shellcheck string) error {
	workflows, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*.y*ml"))
	if err == nil && len(workflows) == 0 {
		err = errors.New("there is no workflow")
	}
	if err != nil {
		return err
	}
	args := append([]string{"-no-color", "-shellcheck=" + shellcheck, "-pyflakes="}, workflows...)
	if out, err := output(ctx, nil, root, actionlint, args...); err != nil {
		return fmt.Errorf("actionlint: %w\n%s", err, out)
	}
	return nil
}

// lintScripts checks every shell script that git tracks.
func lintScripts(ctx context.Context, root, shellcheck string) error {
	files, err := tracked(ctx, root)
	if err != nil {
		return err
	}
	args := []string{"--color=never", "--"}
	scripts := 0
	for _, file := range files {
		if isScript(filepath.Join(root, file)) {
			args = append(args, file)
			scripts++
		}
	}
	if scripts == 0 {
		return errors.New("git tracks no shell script")
	}
	if out, err := output(ctx, nil, root, shellcheck, args...); err != nil {
		return fmt.Errorf("shellcheck: %w\n%s", err, out)
	}
	return nil
}

var shell = regexp.MustCompile(`^#!.*\b(ba|da)?sh\b`)

// isScript tells shell scripts by their name or their first line.
func isScript(path string) bool {
	if filepath.Ext(path) == ".sh" {
		return true
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	line, _ := bufio.NewReaderSize(f, 128).ReadSlice('\n')
	return shell.Match(line)
}

// tracked lists the files that git tracks, of those that match a pattern if there is one.
func tracked(ctx context.Context, root string, patterns ...string) ([]string, error) {
	out, err := output(ctx, nil, root, "git", append([]string{"ls-files", "-z", "--"}, patterns...)...)
	if err != nil {
		return nil, fmt.Errorf("failed to list the files that git tracks: %w\n%s", err, out)
	}
	return strings.FieldsFunc(out, func(r rune) bool { return r == 0 }), nil
}
