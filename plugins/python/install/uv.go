// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import "path/filepath"

// uvGlobal returns the start of each uv command: it ignores the node's configuration and downloads no interpreter.
func (b *build) uvGlobal(command ...string) []string {
	argv := append([]string{b.with.Path}, command...)
	argv = append(argv, "--no-config", "--no-python-downloads", "--color", "never")
	if b.downloads == "" {
		return append(argv, "--no-cache")
	}
	return append(argv, "--cache-dir", b.downloads)
}

func (b *build) uvVenv() []string {
	return append(b.uvGlobal("venv"), "--no-project", "--python", b.Python.Path, b.Dir)
}

func (b *build) uvInstall() []string {
	strategy := "first-index" // a package of a private index is never taken from another index
	if b.Requirements.Hashed {
		strategy = "unsafe-best-match" // a lock may have several indexes, and its hashes identify the files
	}
	argv := append(b.uvGlobal("pip", "install"),
		"--python", filepath.Join(b.Dir, "bin/python"),
		"--link-mode", "copy", // sealing would change a hard link in both places
		"--index-strategy", strategy,
		"--keyring-provider", "disabled",
		"--no-build",
		"-r", b.input.requirements)
	for n, project := range b.input.projects {
		argv = append(argv, "-r", project)
		for _, extra := range b.Requirements.Projects[n].Extras {
			argv = append(argv, "--extra="+extra)
		}
		for _, group := range b.Requirements.Projects[n].Groups {
			argv = append(argv, "--group="+project+":"+group)
		}
	}
	if b.input.pylock != "" {
		argv = append(argv, "-r", b.input.pylock)
	}
	if b.Requirements.NewerThan != "" {
		argv = append(argv, "--exclude-newer="+b.Requirements.NewerThan)
	}
	if b.Refresh {
		argv = append(argv, "--refresh")
	}
	if b.input.constraints != "" {
		argv = append(argv, "-c", b.input.constraints)
	}
	if b.input.overrides != "" {
		argv = append(argv, "--overrides", b.input.overrides)
	}
	if b.Requirements.Hashed && b.input.pylock == "" {
		argv = append(argv, "--require-hashes")
	}
	if b.Requirements.Complete && b.input.pylock == "" {
		argv = append(argv, "--no-deps")
	}
	if b.Sources.Offline {
		argv = append(argv, "--no-index")
	}
	return argv
}
