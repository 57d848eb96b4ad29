// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/index"
)

// option is one of a requirements file.
type option struct{ name, value string }

// short are pip's short options.
var short = map[string]string{
	"-r": "--requirement", "-c": "--constraint", "-e": "--editable", "-i": "--index-url", "-f": "--find-links",
	"--pypi-url": "--index-url",
}

// alone are the options without a value.
var alone = []string{"--no-index", "--prefer-binary", "--require-hashes", "--pre", "--use-pep517", "--no-use-pep517"}

// breakOptions cuts a line where pip does, before the first word with a hyphen.
func breakOptions(line string) (before, options string) {
	for i := range line {
		if line[i] == '-' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return line[:i], line[i:]
		}
	}
	return line, ""
}

func parseOptions(text string) ([]option, error) {
	words, err := splitWords(text)
	if err != nil {
		return nil, err
	}
	var list []option
	for len(words) > 0 {
		o, has := option{name: words[0]}, false
		words = words[1:]
		if strings.HasPrefix(o.name, "--") {
			o.name, o.value, has = strings.Cut(o.name, "=")
		} else if len(o.name) > 2 && o.name[0] == '-' {
			o.name, o.value, has = o.name[:2], o.name[2:], true
		}
		if long := short[o.name]; long != "" {
			o.name = long
		}
		if !strings.HasPrefix(o.name, "-") {
			return nil, fmt.Errorf("%s is after an option and none itself: put it on a line of its own", show(o.name))
		}
		if slices.Contains(alone, o.name) {
			if has {
				return nil, fmt.Errorf("%s has a value, which it does not take", o.name)
			}
			list = append(list, o)
			continue
		}
		if !has && len(words) > 0 {
			o.value, words = words[0], words[1:]
		}
		list = append(list, o)
	}
	return list, nil
}

// splitWords takes quotes as a shell does.
func splitWords(text string) ([]string, error) {
	var list []string
	var current strings.Builder
	var quote rune
	inside := false
	for _, c := range text {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, inside = c, true
		case c == '\\':
			return nil, errors.New("there is a backslash that does not end the line: put the value in quotes instead")
		case quote == 0 && (c == ' ' || c == '\t'):
			if inside {
				list = append(list, current.String())
			}
			current.Reset()
			inside = false
		default:
			current.WriteRune(c)
			inside = true
		}
	}
	if quote != 0 {
		return nil, errors.New("a quote is not closed")
	}
	if inside {
		list = append(list, current.String())
	}
	return list, nil
}

// options reads a line of them.
func (f *files) options(at place, text string, constraint bool) error {
	given, err := parseOptions(text)
	if err != nil {
		return at.failed(err)
	}
	for _, o := range given {
		switch o.name {
		case "--requirement", "--constraint":
			err = f.include(at, o, constraint)
		default:
			err = f.option(at.file, o)
		}
		if err != nil {
			return at.failed(err)
		}
	}
	return nil
}

func (f *files) include(at place, o option, constraint bool) error {
	switch {
	case o.value == "" || strings.HasPrefix(o.value, "-"):
		return fmt.Errorf("%s needs a file", o.name)
	case strings.Contains(o.value, ":/"):
		return fmt.Errorf("%s has a URL: fetch the file with an artifact block, and name it here", o.name)
	case constraint && o.name == "--requirement":
		return errors.New("a file of constraints requires another: write -c, or require it elsewhere")
	}
	return f.file(relative(at.file, o.value), o.name == "--constraint")
}

// option is one that does not include a file. Only the configuration of the node decides what is built and which
// hosts are trusted.
func (f *files) option(file string, o option) error {
	switch o.name {
	case "--index-url":
		if _, err := index.CheckURL(o.value); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		if f.indexes.URL != "" && f.indexes.URL != o.value {
			return errors.New("there is a second --index-url: write --extra-index-url for another index")
		}
		f.indexes.URL = o.value
	case "--extra-index-url":
		if _, err := index.CheckURL(o.value); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
		if !slices.Contains(f.indexes.Extra, o.value) { // their order is the file's
			f.indexes.Extra = append(f.indexes.Extra, o.value)
		}
	case "--find-links":
		links, err := findLinks(file, o.value)
		if err != nil {
			return err
		}
		if !slices.Contains(f.indexes.FindLinks, links) {
			f.indexes.FindLinks = append(f.indexes.FindLinks, links)
		}
	case "--no-index":
		f.indexes.Offline = true
	case "--require-hashes":
		f.insist = true
	case "--only-binary", "--prefer-binary": // what is built here never comes from source otherwise either
	case "--hash":
		return errors.New("--hash stands alone: put it after its requirement, or end the line before it with a backslash")
	default:
		return o.refused()
	}
	return nil
}

func findLinks(file, value string) (string, error) {
	switch {
	case value == "" || strings.HasPrefix(value, "-"):
		return "", errors.New("--find-links needs a directory or a page")
	case strings.HasPrefix(value, "file:"):
		return "", errors.New("--find-links has a file: URL: write the directory's path")
	case strings.Contains(value, ":/"):
		_, err := index.CheckURL(value)
		if err != nil {
			return "", fmt.Errorf("--find-links: %w", err)
		}
		return value, nil
	}
	links := relative(file, value)
	if strings.HasPrefix(links, "-") {
		return "", fmt.Errorf("--find-links: directory %s begins with a hyphen, which installers take for an option: "+
			"name it otherwise", show(links))
	}
	return links, nil
}

func (o option) besideRequirement() error {
	switch o.name {
	case "--requirement", "--constraint", "--index-url", "--extra-index-url", "--find-links", "--no-index":
		return fmt.Errorf("%s stands after a requirement, where pip ignores it: put it on a line of its own", o.name)
	}
	return o.refused()
}

func (o option) refused() error {
	switch o.name {
	case "--editable":
		return errors.New("an editable install is of a source tree: build a wheel of it, name its directory in find_links, " +
			"and the package here (uv export has --no-emit-project)")
	case "--trusted-host":
		return errors.New("--trusted-host would switch off the check of certificates: " +
			"let the node's operator install that of your index's authority")
	case "--no-binary":
		return errors.New("--no-binary asks for builds from source: remove it, packages come as wheels")
	case "--pre":
		return errors.New("--pre allows pre-releases of everything: name the one you mean in its requirement, such as " +
			"\"NAME>=2.0rc1\"")
	case "--use-pep517", "--no-use-pep517", "--config-settings", "--config-setting", "--global-option", "--build-option",
		"--install-option":
		return fmt.Errorf("%s is about builds from source: build a wheel with it, and name its directory in find_links",
			o.name)
	}
	return fmt.Errorf("%s is not an option that requirements files have here: remove it", show(o.name))
}
