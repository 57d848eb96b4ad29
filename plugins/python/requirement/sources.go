// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Sources are the origins of packages.
type Sources struct {
	URL       string   // the index (PEP 503); a job's replaces its file's, which replaces the node's
	Extra     []string // more indexes
	FindLinks []string // directories with packages, and pages that link to them
	Offline   bool     // use no index
}

// ErrJobIndexes is the error if a job names an index on a node that does not allow it.
var ErrJobIndexes = errors.New("this node does not let jobs name package indexes or URLs " +
	"(job_indexes = false in the plugin's config)")

// Resolve merges the sources of the node, a job, and the job's requirements file or lock. It returns the job's
// directories separately, because the installer cannot read them. If jobs is false, the job may name no index and no
// page, and the file may name only the node's own indexes.
func Resolve(node, job, file Sources, jobs bool) (s Sources, directories []string, err error) {
	own := slices.Concat([]string{node.URL}, node.Extra)
	foreign := func(index string) bool { return !slices.Contains(own, index) }
	file = file.like(slices.Concat([]string{job.URL}, job.Extra, own))
	named := job.URL != "" || len(job.Extra) > 0 || file.URL != "" && foreign(file.URL) ||
		slices.ContainsFunc(file.Extra, foreign)
	if !jobs && (named || slices.ContainsFunc(slices.Concat(job.FindLinks, file.FindLinks), IsURL)) {
		return s, nil, ErrJobIndexes
	}
	s.Offline = node.Offline || job.Offline || file.Offline
	if !s.Offline {
		s.URL = cmp.Or(job.URL, file.URL, node.URL)
		for _, extra := range slices.Concat(job.Extra, file.Extra) {
			if extra != s.URL && !slices.Contains(s.Extra, extra) {
				s.Extra = append(s.Extra, extra)
			}
		}
		if s.URL == node.URL && len(job.Extra) == 0 && !slices.ContainsFunc(s.Extra, foreign) {
			s.Extra = slices.Clone(node.Extra)
		}
	}
	s.FindLinks = slices.Clone(node.FindLinks)
	for _, links := range slices.Concat(job.FindLinks, file.FindLinks) {
		if IsURL(links) {
			s.FindLinks = append(s.FindLinks, links) // even if offline: a page is not an index
		} else if !slices.Contains(directories, links) {
			directories = append(directories, links)
		}
	}
	return s, directories, nil
}

// like adds the credentials of known indexes: a lock, for example, names an index without its credentials.
func (s Sources) like(known []string) Sources {
	find := func(index string) string {
		for _, k := range known {
			if strings.TrimSuffix(credentials.ReplaceAllString(k, "://"), "/") == strings.TrimSuffix(index, "/") {
				return k
			}
		}
		return index
	}
	s.URL = find(s.URL)
	s.Extra = slices.Clone(s.Extra)
	for i, extra := range s.Extra {
		s.Extra[i] = find(extra)
	}
	return s
}

// Options returns the sources as option lines of a requirements file for uv.
func (s Sources) Options() ([]string, error) {
	var lines []string
	var failed []error
	add := func(option, source string) {
		u, err := CheckURL(source)
		if filepath.IsAbs(source) {
			u = &url.URL{Scheme: "file", Path: filepath.Clean(source)} // a URL can encode all characters of a path
		} else if err != nil {
			failed = append(failed, fmt.Errorf("invalid package index or find_links: %w", err))
			return
		}
		lines = append(lines, option+" "+strings.ReplaceAll(u.String(), "$", "%24")) // uv would expand ${NAME}
	}
	if !s.Offline {
		add("--index-url", s.URL)
		for _, extra := range s.Extra {
			add("--extra-index-url", extra)
		}
	}
	for _, links := range s.FindLinks {
		add("--find-links", links)
	}
	return lines, errors.Join(failed...)
}

// IsURL reports whether text is a URL, and not a directory.
func IsURL(text string) bool {
	return strings.HasPrefix(text, "http://") || strings.HasPrefix(text, "https://")
}

var credentials = regexp.MustCompile(`://[^/\s]*@`)

// Redact removes users and passwords from the URLs of a text.
func Redact(text string) string { return credentials.ReplaceAllString(text, "://…@") }

var urlText = regexp.MustCompile(`^[A-Za-z0-9._~:/?#\[\]@!$&'()*+,=%-]+$`)

// CheckURL parses the URL of an index, a page or a package. Errors omit the URL, because it may have a password.
func CheckURL(text string) (*url.URL, error) {
	if !urlText.MatchString(text) {
		return nil, errors.New("the URL is empty, or has invalid characters: encode them (a space is %20)")
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("the URL has no host, or is not HTTP or HTTPS: write it as \"https://host/path\"")
	}
	return u, nil
}
