// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/outrider-dev/outrider/plugins/python/index"
)

var notBlank = regexp.MustCompile(`^[^ \t]+`)

// maxShown bounds the parts of a file that errors show, in characters.
const maxShown = 80

// show quotes a part of a file for an error, without secrets of URLs.
func show(text string) string {
	text = index.Redact(text)
	if utf8.RuneCountInString(text) > maxShown {
		text = string([]rune(text)[:maxShown]) + "…"
	}
	return strconv.Quote(text)
}

// checkText refuses characters on which readers of such files do not agree, so that an installer sees what was checked
// here.
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

// nameWheel gives a URL that stands alone the name that is in a wheel's file name
// (the binary distribution format of PyPA's specifications).
func nameWheel(text string) string {
	if !index.IsURL(text) {
		return text
	}
	u, err := url.Parse(notBlank.FindString(text))
	if err != nil {
		return text
	}
	file := path.Base(u.Path)
	name, _, ok := strings.Cut(file, "-")
	if !ok || !strings.HasSuffix(file, ".whl") || nameText.FindString(name) != name {
		return text
	}
	return name + " @ " + text
}

// IsArchive reports whether an installer could take a file of that name for a wheel or for a source distribution.
func IsArchive(name string) bool {
	name = strings.ToLower(name)
	ends := []string{".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tar.lz", ".tlz",
		".tar.lzma", ".tar.zst", ".tar.z"}
	return slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(name, end) })
}

func checkPackageURL(text string) error {
	_, err := index.CheckURL(text)
	if err != nil {
		return err
	}
	_, rest := fragmentHash(text)
	if second, _ := fragmentHash(rest); second != "" {
		return errors.New("the URL has several hashes: leave one")
	}
	return nil
}

// checkPlain refuses a URL whose file could be changed in transit unnoticed.
func (r requirement) checkPlain() error {
	u, err := url.Parse(r.url)
	if hash, _ := fragmentHash(r.url); err != nil || u.Scheme != "http" || hash != "" || len(r.hashes) > 0 {
		return err
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s is neither encrypted nor has a hash: write https://, or add --hash=sha256:…",
		show(r.name+" @ "+r.url))
}
