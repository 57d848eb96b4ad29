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

// input has the paths of files that uv reads. Their URLs may have credentials: only the builder can read the files, and
// arguments, which all users can see, have no URL.
type input struct{ requirements, constraints, netrc string } // constraints and netrc may be ""

// prepare writes the files into Work.
func (b *build) prepare() error {
	lines, err := b.Sources.Options()
	if err != nil {
		return err
	}
	lines = append(lines, b.Requirements.Lines...)
	b.input.requirements = filepath.Join(b.Work, "requirements.txt")
	if err := b.write(b.input.requirements, lines); err != nil {
		return err
	}
	if len(b.Requirements.Constraints) > 0 {
		b.input.constraints = filepath.Join(b.Work, "constraints.txt")
		if err := b.write(b.input.constraints, b.Requirements.Constraints); err != nil {
			return err
		}
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
