package install

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// hasPip reports whether an interpreter has a pip that installs into other environments (--python, since 22.3).
func hasPip(python interpreter.Interpreter) bool {
	return python.Pip != nil && interpreter.CompareVersions(python.PipVersion, "22.3") >= 0
}

// check refuses before anything runs what could have code of a package run.
func (b *build) check() error {
	if b.AllowSdists {
		return nil
	}
	if b.maxProcesses() > 0 && strings.Contains(b.Python.Libc, "musl") {
		return errors.New("pip has to start a program to learn the version of musl, which it may not on a node " +
			"that builds no packages from source (allow_sdists): install uv")
	}
	return b.Requirements.CheckWheels()
}

func (b *build) pipInstall() []string {
	python := b.Python
	if !hasPip(python) {
		python = b.with.Python
	}
	argv := slices.Concat([]string{python.Path, "-I"}, python.Pip, []string{
		"--python", filepath.Join(b.Dir, "bin/python"), "install",
		"--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--no-color", "--no-compile",
		"--retries", "2", "--timeout", "15"})
	if b.Downloads == "" {
		argv = append(argv, "--no-cache-dir")
	} else {
		argv = append(argv, "--cache-dir", b.kept())
	}
	if !b.AllowSdists {
		argv = append(argv, "--only-binary", ":all:")
	}
	return append(argv, b.common()...)
}

// maxProcesses keeps pip from building a package that another one names by its URL, to which --only-binary does not
// apply: for that it needs one process more than the two of --python. The limit is one of the user, so it needs a user
// that has no other process. 0 is no limit.
func (b *build) maxProcesses() int {
	if b.with.Name == "pip" && !b.AllowSdists && b.As != nil {
		return 2
	}
	return 0
}
