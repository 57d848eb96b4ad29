// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package index

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// MaxNetrc bounds a .netrc file, in bytes.
const MaxNetrc = 64 << 10

// Netrc has the credentials of hosts by their names.
type Netrc map[string]*url.Userinfo

// ParseNetrc reads machine, login and password of a .netrc file, with or without quotes. The first entry of a machine
// counts. It ignores the entry "default", which would send a password to each index. Text that curl, pip and uv read
// differently is an error: with a missing value, one host would get the credentials of another. Comments begin where a
// keyword could; macros end with an empty line. Errors do not quote the file.
func ParseNetrc(text string) (Netrc, error) {
	found := Netrc{}
	host, values := "", map[string]string{}
	end := func() {
		password, known := values["password"]
		if _, before := found[host]; host != "" && known && !before {
			found[host] = url.UserPassword(values["login"], password)
		}
		host, values = "", map[string]string{}
	}
	number, macro := 0, false
	for line := range strings.Lines(text) {
		number++
		if line = strings.TrimSpace(line); line == "" {
			macro = false
		}
		for line != "" && !macro && line[0] != '#' {
			var keyword, value string
			var ok bool
			keyword, line, _ = netrcWord(line)
			switch keyword {
			case "default":
				end()
				continue
			case "macdef":
				macro = true
				continue
			case "machine", "login", "password", "account":
			default:
				return nil, fmt.Errorf("line %d has a word where machine, login, password or account is expected: "+
					"put a value with blanks into quotes", number)
			}
			if value, line, ok = netrcWord(line); !ok {
				return nil, fmt.Errorf("line %d has no value for %s, or one whose quote is not closed: "+
					"write one that is empty as \"\"", number, keyword)
			}
			if keyword == "machine" {
				end()
				host = strings.ToLower(value)
				continue
			}
			if _, before := values[keyword]; before {
				return nil, fmt.Errorf("line %d has a second %s for one machine", number, keyword)
			}
			values[keyword] = value
		}
	}
	end()
	return found, nil
}

// netrcWord returns the first word of a line, and the rest; ok is false without one.
func netrcWord(line string) (word, rest string, ok bool) {
	switch {
	case line == "":
		return "", "", false
	case line[0] == '"':
		word, rest, ok = unquoted(line[1:])
	default:
		end := strings.IndexAny(line, " \t")
		if end < 0 {
			end = len(line)
		}
		word, rest, ok = line[:end], line[end:], true
	}
	return word, strings.TrimLeft(rest, " \t"), ok
}

// unquoted returns a text up to its quotation mark, and the rest; ok is false without one.
func unquoted(text string) (word, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '"':
			return b.String(), text[i+1:], true
		case text[i] == '\\' && i+1 < len(text):
			i++
		}
		b.WriteByte(text[i])
	}
	return "", "", false
}

// Login adds credentials to the indexes and pages of s that have none of their own.
func (n Netrc) Login(s Sources) Sources {
	s.URL = n.login(s.URL)
	for _, list := range []*[]string{&s.Extra, &s.FindLinks} {
		*list = slices.Clone(*list)
		for i, text := range *list {
			(*list)[i] = n.login(text)
		}
	}
	return s
}

func (n Netrc) login(text string) string {
	if !IsURL(text) {
		return text
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil || n[strings.ToLower(u.Hostname())] == nil {
		return text
	}
	u.User = n[strings.ToLower(u.Hostname())]
	return u.String()
}
