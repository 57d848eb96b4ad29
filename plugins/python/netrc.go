package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path/filepath"
	"strings"
)

// netrcFile is a task's file with the credentials for hosts, below its secrets directory.
const netrcFile = ".netrc"

// maxNetrc is more than any such file has, in bytes.
const maxNetrc = 1 << 20

// netrc are the credentials for hosts, by name, the first of each.
type netrc map[string]*url.Userinfo

// readNetrc reads that of a task, with its rights; there may be none. What is in it is in no error.
func readNetrc(files taskFiles) (netrc, error) {
	if files.secrets == "" {
		return nil, nil
	}
	var content []byte
	err := asUser(files.user, func() error {
		f, err := openRegular(filepath.Join(files.secrets, netrcFile), 0)
		if err != nil {
			return err
		}
		defer f.Close()
		content, err = io.ReadAll(io.LimitReader(f, maxNetrc+1))
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err == nil && len(content) > maxNetrc:
		err = fmt.Errorf("it is larger than %d KiB", maxNetrc>>10)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to read the credentials for package indexes in secrets/%s: %w", netrcFile, err)
	}
	return parseNetrc(string(content)), nil
}

// parseNetrc reads what curl, pip and uv read: machine, login and password, in quotes or not. The entry
// "default" would give a password to every index, and is left out.
func parseNetrc(text string) netrc {
	found := netrc{}
	var host, login, password string
	known := false
	end := func() {
		if _, before := found[host]; host != "" && known && !before {
			found[host] = url.UserPassword(login, password)
		}
		host, login, password, known = "", "", "", false
	}
	words := netrcWords(text)
	next := func() (word string) {
		if len(words) > 0 {
			word, words = words[0], words[1:]
		}
		return word
	}
	for len(words) > 0 {
		switch next() {
		case "machine":
			end()
			host = strings.ToLower(next())
		case "default":
			end()
		case "login":
			login = next()
		case "password":
			known = len(words) > 0
			password = next()
		case "account":
			next()
		}
	}
	end()
	return found
}

// netrcWords are those of a file without comments and macros, which end with an empty line.
func netrcWords(text string) (words []string) {
	macro := false
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			macro = false
		}
		for line != "" && !macro && line[0] != '#' {
			var word string
			if line[0] == '"' {
				word, line = unquoted(line[1:])
			} else {
				end := strings.IndexAny(line+" ", " \t")
				word, line = line[:end], line[end:]
				macro = word == "macdef"
			}
			if !macro {
				words = append(words, word)
			}
			line = strings.TrimLeft(line, " \t")
		}
	}
	return words
}

// unquoted is a text up to its quotation mark, and what is after that.
func unquoted(text string) (word, rest string) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '"':
			return b.String(), text[i+1:]
		case text[i] == '\\' && i+1 < len(text):
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String(), ""
}

// give adds what is known of a URL's host, unless the URL has credentials of its own. What is no URL stays as it is.
func (n netrc) give(text string) string {
	if len(n) == 0 || !isURL(text) {
		return text
	}
	u, err := url.Parse(text)
	if err != nil || u.User != nil || n[strings.ToLower(u.Hostname())] == nil {
		return text
	}
	u.User = n[strings.ToLower(u.Hostname())]
	return u.String()
}
