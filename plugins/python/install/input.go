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

	"github.com/outrider-dev/outrider/plugins/python/index"
)

// input has the paths of files that uv reads, "" for none. Their URLs may have credentials: only the builder can read
// the files, and arguments, which all users can see, have no URL.
type input struct {
	requirements, constraints, overrides, pylock, netrc string
	projects                                            []string // in the order of Requirements.Projects
}

// prepare writes the files into Work.
func (b *build) prepare() (err error) {
	r := b.Requirements
	lines, err := b.Sources.Options()
	if err != nil {
		return err
	}
	lines = append(lines, r.Lines...)
	if b.input.requirements, err = b.lines("requirements.txt", lines); err != nil {
		return err
	}
	if len(r.Constraints) > 0 {
		if b.input.constraints, err = b.lines("constraints.txt", r.Constraints); err != nil {
			return err
		}
	}
	if len(r.Overrides) > 0 {
		if b.input.overrides, err = b.lines("overrides.txt", r.Overrides); err != nil {
			return err
		}
	}
	for n, project := range r.Projects {
		dir := fmt.Sprint("project-", n)
		if err := b.directory(dir); err != nil {
			return err
		}
		path, err := b.file(dir+"/pyproject.toml", project.Text)
		if err != nil {
			return err
		}
		b.input.projects = append(b.input.projects, path)
		lines = append(lines, string(project.Text))
	}
	if r.Pylock != nil {
		if b.input.pylock, err = b.file("pylock.toml", r.Pylock); err != nil {
			return err
		}
		lines = append(lines, string(r.Pylock))
	}
	if len(b.Netrc) > 0 {
		if b.input.netrc, err = b.file("netrc", b.Netrc); err != nil {
			return err
		}
		b.env = append(b.env, "NETRC="+b.input.netrc)
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

// lines writes a file of lines, as file does.
func (b *build) lines(name string, lines []string) (path string, err error) {
	for _, line := range lines {
		if strings.ContainsAny(line, "\r\n\x00") {
			return "", fmt.Errorf("the requirement %q has more than one line", index.Redact(line))
		}
	}
	return b.file(name, []byte(strings.Join(lines, "\n")+"\n"))
}

// file makes a file in Work that only the builder can read, and returns its path. The builder owns that directory: no
// link out of it is followed.
func (b *build) file(name string, content []byte) (path string, err error) {
	f, err := b.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", fmt.Errorf("failed to write what uv reads: %w", err)
	}
	defer f.Close()
	if b.As != nil {
		err = f.Chown(int(b.As.Uid), int(b.As.Gid))
	}
	if err == nil {
		_, err = f.Write(content)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return "", fmt.Errorf("failed to write what uv reads: %w", err)
	}
	return filepath.Join(b.Work, name), nil
}

// directory makes a directory of the builder in Work.
func (b *build) directory(name string) error {
	err := b.root.Mkdir(name, 0o700)
	if err == nil && b.As != nil {
		err = b.root.Lchown(name, int(b.As.Uid), int(b.As.Gid))
	}
	if err != nil {
		return fmt.Errorf("failed to make a directory for what uv reads: %w", err)
	}
	return nil
}
