package install

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// source is where packages of a request come from and what they are, as files that both
// tools read (the requirements file format, pip.pypa.io). URLs may have credentials:
// they are in these files alone, which only the builder can read, and in no argv.
type source struct {
	requirements, constraints string // files; constraints may be none
	allowed                   hosts
	secrets                   []string
	credentials               hash.Hash // of all URLs that have some, nil if none has
}

// newSource writes the files into r.Work.
func newSource(tool string, r *Request) (*source, error) {
	s := &source{allowed: hosts{patterns: r.AllowedHosts}}
	lines, err := s.options(tool, r.Indexes)
	if err != nil {
		return nil, err
	}
	for _, raw := range r.Requirements.URLs {
		u, err := url.Parse(raw)
		if err != nil {
			return nil, fmt.Errorf("failed to read the URL of a requirement: %w", withoutURL(err))
		}
		if _, scheme, ok := strings.Cut(u.Scheme, "+"); ok { // git+https
			u.Scheme = scheme
		}
		s.add(u)
	}
	s.requirements = filepath.Join(r.Work, "requirements.txt")
	if err := writeLines(s.requirements, append(lines, r.Requirements.Lines...), r.As); err != nil {
		return nil, err
	}
	if len(r.Requirements.Constraints) > 0 {
		s.constraints = filepath.Join(r.Work, "constraints.txt")
		if err := writeLines(s.constraints, r.Requirements.Constraints, r.As); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// add notes what a URL allows, and what it has to hide.
func (s *source) add(u *url.URL) {
	s.allowed.add(u)
	s.secrets = append(s.secrets, secretsOf(u)...)
	if u.User != nil {
		if s.credentials == nil {
			s.credentials = sha256.New()
		}
		fmt.Fprintf(s.credentials, "%s %s\n", u.User, address(u))
	}
}

// downloads is where below dir a tool may keep what it downloads. What one job's credentials got does not
// serve jobs that have others or none: tools find it by a URL without its credentials.
func (s *source) downloads(dir, tool string) string {
	dir = filepath.Join(dir, "2") // beside is what was kept when pip could run code of packages, which could change it
	if s.credentials == nil {
		return filepath.Join(dir, tool)
	}
	return filepath.Join(dir, hex.EncodeToString(s.credentials.Sum(nil)[:16]), tool)
}

// options are the lines that name the indexes.
func (s *source) options(tool string, from requirement.Indexes) ([]string, error) {
	var lines []string
	add := func(option, raw string) error {
		u, err := url.Parse(raw)
		switch {
		case err != nil:
			return fmt.Errorf("failed to read a package index's URL: %w", withoutURL(err))
		case filepath.IsAbs(raw):
			u = &url.URL{Scheme: "file", Path: filepath.Clean(raw)} // which, unlike a path, can have any character
		case u.Scheme == "file" && (u.Host == "" || u.Host == "localhost"):
		case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			return fmt.Errorf("%q is neither an http or https URL nor an absolute directory", requirement.Redact(raw))
		}
		s.add(u)
		lines = append(lines, option+" "+strings.ReplaceAll(u.String(), "$", "%24")) // ${NAME} is a variable
		if u.Scheme == "http" && tool == "pip" {
			// It was named, so it is meant. pip would insist on https.
			lines = append(lines, "--trusted-host "+u.Host)
		}
		return nil
	}
	var all []error
	if !from.Offline {
		all = append(all, add("--index-url", from.URL))
		for _, extra := range from.Extra {
			all = append(all, add("--extra-index-url", extra))
		}
	}
	for _, links := range from.FindLinks {
		all = append(all, add("--find-links", links))
	}
	return lines, errors.Join(all...)
}

// withoutURL is the reason alone of an error of net/url, whose text has the URL and so its password.
func withoutURL(err error) error {
	var e *url.Error
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// writeLines makes a file for the builder alone.
func writeLines(path string, lines []string, as *syscall.Credential) error {
	for _, line := range lines {
		if strings.ContainsAny(line, "\r\n\x00") {
			return fmt.Errorf("the requirement %q has more than one line", requirement.Redact(line))
		}
	}
	if err := writeFor(path, []byte(strings.Join(lines, "\n")+"\n"), as); err != nil {
		return fmt.Errorf("failed to write the requirements: %w", err)
	}
	return nil
}

// writeFor makes a file that is as's alone.
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
