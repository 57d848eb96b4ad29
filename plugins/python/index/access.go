// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package index

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/ryanuber/go-glob"
)

// Access has the hosts that a build may reach, and their credentials.
type Access struct {
	// Patterns are further hosts that the operator allows, with or without a port; * stands for any characters.
	Patterns []string

	hosts   map[string]bool // host:port
	secrets []string
	logins  hash.Hash // of all URLs that have credentials, nil if none has
}

// Add allows the host of a URL, and hides the URL's secrets.
func (a *Access) Add(u *url.URL) {
	if a.hosts == nil {
		a.hosts = map[string]bool{}
	}
	if u.Host != "" {
		a.hosts[address(u)] = true
	}
	if host, port, _ := net.SplitHostPort(address(u)); u.Scheme == "http" && port == "80" {
		a.hosts[net.JoinHostPort(host, "443")] = true // many redirect to their encrypted side
	}
	if u.Hostname() == "pypi.org" {
		a.hosts["files.pythonhosted.org:443"] = true
	}
	if password, ok := u.User.Password(); ok {
		_, escaped, _ := strings.Cut(u.User.String(), ":")
		a.hide(password, escaped)
	} else if u.User != nil {
		a.hide(u.User.Username()) // a token
	}
	a.hide(u.RawQuery) // may be a signature
	if u.User != nil {
		if a.logins == nil {
			a.logins = sha256.New()
		}
		fmt.Fprintf(a.logins, "%s %s\n", u.User, address(u))
	}
}

// hide makes Redact remove secrets. Secrets of less than four characters occur in ordinary words, so Redact removes
// them from URLs only.
func (a *Access) hide(secrets ...string) {
	for _, s := range secrets {
		if len(s) >= 4 {
			a.secrets = append(a.secrets, s)
		}
	}
}

// Logins is a digest of all credentials, "" without any. Downloads that needed them must not serve jobs with others.
func (a *Access) Logins() string {
	if a.logins == nil {
		return ""
	}
	return hex.EncodeToString(a.logins.Sum(nil)[:16])
}

func (a *Access) allows(u *url.URL) bool {
	return a.hosts[address(u)] || a.allowsByPattern(strings.ToLower(u.Hostname()), address(u))
}

func (a *Access) allowsByPattern(names ...string) bool {
	return slices.ContainsFunc(a.Patterns, func(pattern string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return glob.Glob(strings.ToLower(pattern), name) })
	})
}

// address is the host:port of a URL.
func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "443"
		if u.Scheme == "http" {
			port = "80"
		}
	}
	return net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// short removes a default port.
func short(address string) string {
	if host, port, err := net.SplitHostPort(address); err == nil && (port == "443" || port == "80") {
		return host
	}
	return address
}

var (
	ambiguous   = regexp.MustCompile(`://[^/\s]*[?#][^/\s]*@\S*`) // a password with such a character, or a query with an @
	credentials = regexp.MustCompile(`://[^/\s]*@`)
	additions   = regexp.MustCompile(`[?#]\S+`) // query and fragment
	fileHash    = regexp.MustCompile(`\b(?:sha256=[0-9a-fA-F]{64}|sha384=[0-9a-fA-F]{96}|sha512=[0-9a-fA-F]{128})(?:&|$)`)
	places      = regexp.MustCompile("\\S*/[^\\s'\"`)>]*") // URLs, and paths that may be of URLs
)

// Redact removes possible secrets from the URLs of a line: user and password, the query, and the fragment except for a
// hash.
func Redact(line string) string {
	line = ambiguous.ReplaceAllString(line, "://…")
	line = credentials.ReplaceAllString(line, "://…@")
	return additions.ReplaceAllStringFunc(line, func(text string) string {
		_, fragment, _ := strings.Cut(text, "#")
		hash := fileHash.FindString(fragment)
		kept := ""
		if text != "#"+hash {
			kept = text[:1] + "…"
		}
		if hash != "" {
			kept += "#" + strings.TrimSuffix(hash, "&")
		}
		return kept
	})
}

// Redact removes the secrets from a line of output, and possible secrets from its URLs.
func (a *Access) Redact(line string) string {
	for _, s := range a.secrets {
		line = strings.ReplaceAll(line, s, "****")
	}
	return places.ReplaceAllStringFunc(line, Redact)
}
