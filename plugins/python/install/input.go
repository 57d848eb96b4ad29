// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/plugins/python/index"
)

// input has the paths of files that both tools read (the requirements file format, pip.pypa.io). Their URLs may have
// credentials: only the builder can read the files, and arguments, which all users can see, have no URL.
type input struct{ requirements, constraints string } // constraints may be ""

// prepare writes the files into Work, and collects the hosts of their URLs.
func (b *build) prepare() error {
	lines, err := b.Sources.Options(b.with.Name == "pip", &b.access)
	if err != nil {
		return err
	}
	for _, raw := range b.Requirements.URLs {
		u, err := index.CheckURL(raw)
		if err != nil {
			return fmt.Errorf("a requirement: %w", err)
		}
		b.access.Add(u)
	}
	b.input.requirements = filepath.Join(b.Work, "requirements.txt")
	if err := b.write(b.input.requirements, append(lines, b.Requirements.Lines...)); err != nil {
		return err
	}
	if len(b.Requirements.Constraints) > 0 {
		b.input.constraints = filepath.Join(b.Work, "constraints.txt")
		return b.write(b.input.constraints, b.Requirements.Constraints)
	}
	return nil
}

// kept is the directory in which the tool may keep downloads. Each set of credentials has its own, because tools find a
// download by its URL without credentials.
func (b *build) kept() string {
	return filepath.Join(b.Downloads, b.access.Logins(), b.with.Name)
}

func (b *build) write(path string, lines []string) error {
	for _, line := range lines {
		if strings.ContainsAny(line, "\r\n\x00") {
			return fmt.Errorf("the requirement %q has more than one line", index.Redact(line))
		}
	}
	if err := writeFor(path, []byte(strings.Join(lines, "\n")+"\n"), b.As); err != nil {
		return fmt.Errorf("failed to write the requirements: %w", err)
	}
	return nil
}

// writeFor makes a file that only a user can read.
func writeFor(path string, content []byte, as *syscall.Credential) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if as != nil {
		if err := f.Chown(int(as.Uid), int(as.Gid)); err != nil {
			return err
		}
	}
	if _, err := f.Write(content); err != nil {
		return err
	}
	return f.Close()
}
