// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/outrider-dev/outrider/plugins/python/index"
)

// maxShown bounds the parts of a file that errors show, in characters.
const maxShown = 80

// show quotes a part of a file for an error, without passwords of URLs.
func show(text string) string {
	text = index.Redact(text)
	if utf8.RuneCountInString(text) > maxShown {
		text = string([]rune(text)[:maxShown]) + "…"
	}
	return strconv.Quote(text)
}

// checkText refuses characters on which readers of such files do not agree, so that uv sees what was checked here.
func checkText(text string) error {
	if !utf8.ValidString(text) {
		return errors.New("this is not UTF-8: save the file as UTF-8 text")
	}
	for _, c := range text {
		if unicode.IsControl(c) && c != '\t' || c == '\u2028' || c == '\u2029' {
			return fmt.Errorf("there is a control character (U+%04X): remove it", c)
		}
	}
	if strings.Contains(text, "${") {
		return errors.New("variables of the environment are not put in, since they would be the Nomad agent's: " +
			"write the file with a template block, or let Nomad's own interpolation fill in a list in the job")
	}
	return nil
}

var (
	named    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*[ \t]*(\[[^\]]*\])?[ \t]*`)
	optional = regexp.MustCompile(`(?:^|[ \t])(-[^ \t=]*)(?:=|[ \t]+)?([^ \t]*)`)
	safeHash = regexp.MustCompile(`^sha(?:256:[0-9a-fA-F]{64}|384:[0-9a-fA-F]{96}|512:[0-9a-fA-F]{128})$`)
)

// errSyntax is for what is not a requirement that a node can check and install.
var errSyntax = errors.New("write it as \"NAME==VERSION ; MARKER\" or \"NAME @ https://….whl\"; " +
	"of a path or a repository, build a wheel, and name its directory in find_links, or its URL")

// checkRequirement refuses what is a file, a source tree or a repository, and reports whether a requirement names a
// URL. uv checks the rest.
func checkRequirement(text string) (names bool, err error) {
	for _, o := range optional.FindAllStringSubmatch(text, -1) {
		if o[1] != "--hash" {
			return false, fmt.Errorf("%s stands after a requirement, where only --hash has an effect: "+
				"put it on a line of its own", show(o[1]))
		}
		if !safeHash.MatchString(o[2]) {
			return false, fmt.Errorf("hash %s is not one that is safe and complete: use sha256, sha384 or sha512, as "+
				"\"--hash=sha256:…\"", show(o[2]))
		}
	}
	text, _, _ = strings.Cut(text, " --hash")
	text, _, _ = strings.Cut(text, " ;")
	url := text
	if !index.IsURL(text) {
		name := named.FindString(text)
		rest := text[len(name):]
		at := strings.HasPrefix(rest, "@")
		marker := strings.IndexByte(rest, ';')
		if marker < 0 {
			marker = len(rest)
		}
		if name == "" || !at && strings.ContainsAny(rest[:marker], `/\`) || !at && IsWheel(text) {
			return false, fmt.Errorf("%s is not a requirement of a package: %w", show(text), errSyntax)
		}
		if !at {
			return false, nil
		}
		url = strings.TrimSpace(rest[1:])
	}
	u, err := index.CheckURL(url)
	if err != nil {
		return false, fmt.Errorf("%s: %w: %w", show(text), err, errSyntax)
	}
	if u.User != nil { // uv would record it in the environment (direct_url.json)
		return false, fmt.Errorf("%s has a user or a password, which all users of the node could read: put it into "+
			"secrets/.netrc", show(text))
	}
	if !IsWheel(u.Path) {
		return false, fmt.Errorf("%s is not the URL of a wheel, and nothing is built from source here: build a wheel of it, "+
			"and name its URL", show(text))
	}
	return true, nil
}

// IsWheel reports whether a file is a wheel by its name.
func IsWheel(name string) bool { return strings.HasSuffix(name, ".whl") }
