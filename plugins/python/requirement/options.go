// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"errors"
	"fmt"
	"regexp"
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

// alone are the options that take no value.
var alone = []string{"--no-index", "--prefer-binary", "--require-hashes", "--pre"}

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

var (
	optionWord = regexp.MustCompile(`(?:[^ \t"'\\]|"[^"\\]*"|'[^'\\]*')+`)
	quoted     = regexp.MustCompile(`"([^"]*)"|'([^']*)'`)
)

// splitWords takes quotes as a shell does.
func splitWords(text string) ([]string, error) {
	if strings.Trim(optionWord.ReplaceAllString(text, ""), " \t") != "" {
		return nil, errors.New("there is a backslash that does not end the line, or a quote that is not closed: " +
			"put the value in quotes")
	}
	words := optionWord.FindAllString(text, -1)
	for i, w := range words {
		words[i] = quoted.ReplaceAllString(w, "$1$2")
	}
	return words, nil
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

// option applies an option that does not include a file. The node's configuration alone decides what is built from
// source and which hosts are trusted.
func (f *files) option(file string, o option) error {
	if o.name == "--index-url" || o.name == "--extra-index-url" {
		if _, err := index.CheckURL(o.value); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
	}
	switch o.name {
	case "--index-url":
		if f.indexes.URL != "" && f.indexes.URL != o.value {
			return errors.New("there is a second --index-url: write --extra-index-url for another index")
		}
		f.indexes.URL = o.value
	case "--extra-index-url":
		f.indexes.Extra = each(f.indexes.Extra, []string{o.value})
	case "--find-links":
		links, err := findLinks(file, o.value)
		if err != nil {
			return err
		}
		f.indexes.FindLinks = each(f.indexes.FindLinks, []string{links})
	case "--no-index":
		f.indexes.Offline = true
	case "--require-hashes":
		f.insist = true
	case "--only-binary", "--prefer-binary": // wheels are preferred anyway
	default:
		if why := refusals[o.name]; why != "" {
			return fmt.Errorf("%s %s", o.name, why)
		}
		return fmt.Errorf("%s is not an option that requirements files have here: remove it", show(o.name))
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

// refusals tell what to do instead of an option of pip.
var refusals = map[string]string{
	"--editable": "asks for an editable install, of a source tree: build a wheel of it, name its directory in " +
		"find_links, and the package here (uv export has --no-emit-project)",
	"--trusted-host": "would switch off the check of certificates: " +
		"let the node's operator install that of your index's authority",
	"--no-binary": "asks for builds from source: remove it, packages come as wheels",
	"--pre":       "allows pre-releases of everything: name the one you mean in its requirement, such as \"NAME>=2.0rc1\"",
	"--hash":      "stands alone: put it after its requirement, or end the line before it with a backslash",
}
