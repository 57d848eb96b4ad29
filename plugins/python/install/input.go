// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/plugins/python/index"
)

// input has the paths of files that uv reads, "" for none. Their URLs may have credentials: only the builder can read the
// files, and arguments, which all users can see, have no URL.
type input struct {
	requirements, constraints, overrides, pylock, netrc string
	projects                                            []string // in the order of Requirements.Projects
}

// prepare writes the files into Work.
func (b *build) prepare() error {
	r := b.Requirements
	lines, err := b.Sources.Options()
	if err != nil {
		return err
	}
	lines = append(lines, r.Lines...)
	for _, list := range []struct {
		path  *string
		name  string
		lines []string
		force bool
	}{
		{&b.input.requirements, "requirements.txt", lines, true},
		{&b.input.constraints, "constraints.txt", r.Constraints, false},
		{&b.input.overrides, "overrides.txt", r.Overrides, false},
	} {
		if !list.force && len(list.lines) == 0 {
			continue
		}
		*list.path = filepath.Join(b.Work, list.name)
		if err := b.write(*list.path, list.lines); err != nil {
			return err
		}
	}
	for n, project := range r.Projects {
		dir := filepath.Join(b.Work, fmt.Sprint("project-", n))
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("failed to make a directory for a project: %w", err)
		}
		b.input.projects = append(b.input.projects, filepath.Join(dir, "pyproject.toml"))
		if err := writeFor(b.input.projects[n], project.Text, b.As); err != nil {
			return fmt.Errorf("failed to write a project: %w", err)
		}
		lines = append(lines, string(project.Text))
	}
	if r.Pylock != nil {
		b.input.pylock = filepath.Join(b.Work, "pylock.toml")
		if err := writeFor(b.input.pylock, r.Pylock, b.As); err != nil {
			return fmt.Errorf("failed to write the lock: %w", err)
		}
		lines = append(lines, string(r.Pylock))
	}
	if len(b.Netrc) > 0 {
		b.input.netrc = filepath.Join(b.Work, "netrc")
		if err := writeFor(b.input.netrc, b.Netrc, b.As); err != nil {
			return fmt.Errorf("failed to write the credentials: %w", err)
		}
	}
	b.downloads = b.Downloads
	if b.downloads != "" {
		b.downloads = filepath.Join(b.Downloads, logins(lines, b.Netrc))
	}
	return nil
}

// logins names the downloads of builds with the same credentials: uv finds a download by its URL without credentials,
// and would give it to a job that has none.
func logins(lines []string, netrc []byte) string {
	sum := sha256.New()
	has := len(netrc) > 0
	sum.Write(netrc)
	for _, line := range lines {
		if index.HasLogin(line) {
			has = true
			fmt.Fprintf(sum, "\n%s", line)
		}
	}
	if !has {
		return "public"
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
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
