// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/outrider-dev/outrider/internal/core/plain"
)

const (
	maxFiles = 50 // limits the number of files, included ones too
	maxShown = 80 // limits the characters of an input that an error quotes
)

// files reads requirements files as pip's reference specifies ("Requirements File Format").
type files struct {
	read        Reader
	required    []string
	constraints []string
	indexes     Sources
	hashed      bool
	names       bool // a requirement names a URL
	count       int
}

func (f *files) set() *Set {
	return &Set{
		Lines: f.required, Constraints: f.constraints, Indexes: f.indexes, Names: f.names,
		Hashed: f.hashed && len(f.required) > 0,
	}
}

var comment = regexp.MustCompile(`(^|[ \t]+)#.*$`)

// file reads a file and the files that it includes. It joins continued lines and drops comments as pip does.
func (f *files) file(name string, constraint bool) error {
	f.count++
	if f.count > maxFiles {
		return fmt.Errorf("more than %d files are included, or a file includes itself", maxFiles)
	}
	content, err := f.read(name)
	if err != nil {
		return fmt.Errorf("failed to read requirements file %s: %w", name, err)
	}
	var joined strings.Builder
	start := 1
	for i, line := range strings.Split(strings.TrimPrefix(string(content), "\ufeff"), "\n") {
		line = strings.TrimSuffix(line, "\r")
		isComment := strings.HasPrefix(strings.TrimLeft(line, " \t"), "#") // a comment ends a continued line
		before, continued := strings.CutSuffix(line, `\`)
		if continued && !isComment {
			joined.WriteString(before)
			continue
		}
		if isComment {
			line = " " + line
		}
		joined.WriteString(line)
		text := strings.TrimSpace(comment.ReplaceAllString(joined.String(), ""))
		if err := f.line(name, text, constraint); err != nil {
			return fmt.Errorf("%s:%d: %w", name, start, err)
		}
		joined.Reset()
		start = i + 2
	}
	if err := f.line(name, strings.TrimSpace(joined.String()), constraint); err != nil {
		return fmt.Errorf("%s:%d: %w", name, start, err)
	}
	return nil
}

// line reads a line after comments were removed and continued lines joined.
func (f *files) line(file, text string, constraint bool) error {
	if err := checkText(text); err != nil || text == "" {
		return err
	}
	if text[0] == '-' {
		return f.option(file, text, constraint)
	}
	names, err := checkRequirement(text)
	if err != nil {
		return err
	}
	f.names = f.names || names
	f.hashed = f.hashed || strings.Contains(text, "--hash")
	text = strings.Join(strings.Fields(text), " ")
	if constraint {
		f.constraints = append(f.constraints, text)
	} else {
		f.required = append(f.required, text)
	}
	return nil
}

var option = regexp.MustCompile(`^(--[^= \t]*|-.?)[= \t]*(.*)$`)

// option reads a line with an option: "--name value", "--name=value" or "-nvalue". It refuses --trusted-host, because
// only the node's operator decides which hosts to trust.
func (f *files) option(file, text string, constraint bool) (err error) {
	m := option.FindStringSubmatch(text)
	name, value := m[1], strings.Trim(m[2], `"'`)
	switch name {
	case "--requirement", "-r", "--constraint", "-c":
		only := constraint || name == "--constraint" || name == "-c"
		if value == "" || strings.Contains(value, ":/") {
			return fmt.Errorf("%s needs a file name, not a URL: fetch the file with an artifact block first", name)
		}
		return f.file(relative(file, value), only)
	case "--index-url", "-i":
		f.indexes.URL = value
		_, err = CheckURL(value)
	case "--extra-index-url":
		f.indexes.Extra = append(f.indexes.Extra, value)
		_, err = CheckURL(value)
	case "--find-links", "-f":
		if strings.Contains(value, ":/") {
			_, err = CheckURL(value)
		} else {
			value = relative(file, value)
		}
		f.indexes.FindLinks = append(f.indexes.FindLinks, value)
	case "--no-index":
		f.indexes.Offline = true
	case "--require-hashes":
		f.hashed = true
	case "--only-binary", "--prefer-binary": // only wheels are installed anyway
	case "--editable", "-e":
		return fmt.Errorf("%s is not supported, because it builds from source code: %w", name, errWheel)
	case "--trusted-host":
		return errors.New("--trusted-host would disable the verification of certificates: " +
			"ask the node's operator to install your index's CA certificate")
	default:
		return fmt.Errorf("the option %s is not supported in requirements files: remove it", name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// relative resolves a path that a file names, relative to that file.
func relative(file, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(path.Dir(file), name)
}

// show quotes a part of a file for an error, without the passwords of URLs.
func show(text string) string {
	return strconv.Quote(plain.Line(Redact(text), maxShown))
}

// checkText refuses characters that parsers treat differently, so uv reads exactly the text that was checked here.
func checkText(text string) error {
	odd := func(c rune) bool { return unicode.IsControl(c) && c != '\t' || c == '\u2028' || c == '\u2029' }
	switch {
	case !utf8.ValidString(text):
		return errors.New("the text is not UTF-8: save the file as UTF-8")
	case strings.ContainsFunc(text, odd):
		return errors.New("the line has a control character: remove it")
	case strings.Contains(text, "${"):
		return errors.New("environment variables are not expanded in requirements: " +
			"write the file with a template block, or list the requirements in the job, where Nomad expands variables")
	}
	return nil
}

var (
	named    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*[ \t]*(\[[^\]]*\])?[ \t]*`)
	trailing = regexp.MustCompile(`(?:^|[ \t])(-[^ \t=]*)(?:=|[ \t]+)?([^ \t]*)`)
	safeHash = regexp.MustCompile(`^sha(?:256:[0-9a-fA-F]{64}|384:[0-9a-fA-F]{96}|512:[0-9a-fA-F]{128})$`)
)

// errWheel is the advice for requirements that a node cannot check or install.
var errWheel = errors.New("build a wheel from source code, and use the wheel's URL, or add its directory to " +
	"find_links; write other requirements as \"NAME==VERSION ; MARKER\" or \"NAME @ https://….whl\"")

// checkRequirement refuses files, source trees and repositories, and reports whether a requirement names a URL. uv
// checks the rest.
func checkRequirement(text string) (names bool, err error) {
	for _, o := range trailing.FindAllStringSubmatch(text, -1) {
		if o[1] != "--hash" || !safeHash.MatchString(o[2]) {
			return false, fmt.Errorf("%s is not allowed after a requirement: use only complete sha256, sha384 or sha512 "+
				"hashes, such as \"--hash=sha256:…\"", show(o[1]+" "+o[2]))
		}
	}
	text, _, _ = strings.Cut(text, " --hash")
	text, _, _ = strings.Cut(text, " ;")
	url := text
	if !IsURL(text) {
		name := named.FindString(text)
		rest, _, _ := strings.Cut(text[len(name):], ";")
		var at bool
		url, at = strings.CutPrefix(text[len(name):], "@")
		if name == "" || !at && (strings.ContainsAny(rest, `/\`) || IsWheel(text)) {
			return false, fmt.Errorf("%s is not a package requirement: %w", show(text), errWheel)
		}
		if !at {
			return false, nil
		}
	}
	u, err := CheckURL(strings.TrimSpace(url))
	switch {
	case err != nil:
		return false, fmt.Errorf("%s: %w: %w", show(text), err, errWheel)
	case u.User != nil: // uv would record the password in the environment (direct_url.json)
		return false, fmt.Errorf("%s has a user or a password, which all users of the node could read: put them into "+
			"secrets/.netrc", show(text))
	case !IsWheel(u.Path):
		return false, fmt.Errorf("%s is not the URL of a wheel: %w", show(text), errWheel)
	}
	return true, nil
}

// IsWheel reports whether a file name is a wheel's.
func IsWheel(name string) bool { return strings.HasSuffix(name, ".whl") }
