// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"errors"
	"fmt"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/index"
)

// short are pip's short options.
var short = map[string]string{
	"-r": "--requirement", "-c": "--constraint", "-e": "--editable", "-i": "--index-url", "-f": "--find-links",
}

// option reads a line of one option, "--name value", "--name=value" or "-nvalue". The node's configuration alone
// decides which hosts are trusted.
func (f *files) option(at place, text string, constraint bool) error {
	name, value := splitOption(text)
	var err error
	switch name {
	case "--requirement", "--constraint":
		if err := f.include(at, name, value, constraint); err != nil {
			return at.failed(err)
		}
	case "--index-url":
		if f.indexes.URL != "" && f.indexes.URL != value {
			err = errors.New("there is a second --index-url: write --extra-index-url for another index")
			break
		}
		f.indexes.URL = value
		_, err = index.CheckURL(value)
	case "--extra-index-url":
		f.indexes.Extra = each(f.indexes.Extra, []string{value})
		_, err = index.CheckURL(value)
	case "--find-links":
		var links string
		links, err = findLinks(at.file, value)
		if err == nil {
			f.indexes.FindLinks = each(f.indexes.FindLinks, []string{links})
		}
	case "--no-index":
		f.indexes.Offline = true
	case "--require-hashes":
		f.hashed = true
	case "--only-binary", "--prefer-binary": // only wheels are installed anyway
	default:
		why := refusals[name]
		if why == "" {
			why = "is not an option that requirements files have here: remove it"
		}
		return at.failed(fmt.Errorf("%s %s", show(name), why))
	}
	if err != nil {
		return at.failed(fmt.Errorf("%s: %w", name, err))
	}
	return nil
}

func splitOption(text string) (name, value string) {
	end := strings.IndexAny(text, "= \t")
	if end < 0 {
		end = len(text)
	}
	name, value = text[:end], strings.TrimLeft(text[end:], "= \t")
	if len(name) > 2 && name[1] != '-' {
		name, value = name[:2], name[2:]+text[end:]
	}
	if long := short[name]; long != "" {
		name = long
	}
	return name, strings.Trim(strings.TrimSpace(value), `"'`)
}

func (f *files) include(at place, option, name string, constraint bool) error {
	switch {
	case name == "" || strings.HasPrefix(name, "-"):
		return fmt.Errorf("%s needs a file", option)
	case strings.Contains(name, ":/"):
		return fmt.Errorf("%s has a URL: fetch the file with an artifact block, and name it here", option)
	case constraint && option == "--requirement":
		return errors.New("a file of constraints requires another: write -c, or require it elsewhere")
	}
	return f.file(relative(at.file, name), option == "--constraint")
}

func findLinks(file, value string) (string, error) {
	switch {
	case value == "" || strings.HasPrefix(value, "-"):
		return "", errors.New("it needs a directory or a page")
	case strings.HasPrefix(value, "file:"):
		return "", errors.New("it has a file: URL: write the directory's path")
	case strings.Contains(value, ":/"):
		_, err := index.CheckURL(value)
		return value, err
	}
	return relative(file, value), nil
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
