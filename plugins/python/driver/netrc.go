package driver

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
const maxNetrc = 64 << 10

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
	var found netrc
	if err == nil {
		found, err = parseNetrc(string(content))
	}
	if err != nil {
		return nil, fmt.Errorf("failed to read the credentials for package indexes in secrets/%s: %w", netrcFile, err)
	}
	return found, nil
}

// parseNetrc reads machine, login and password, in quotes or not. The entry "default" would give a password to every
// index, and is left out. What curl, pip and uv read in different ways is an error, since with a value that is missing
// one host would get the credentials of another. Comments begin where a keyword could; macros end with an empty line.
func parseNetrc(text string) (netrc, error) {
	found := netrc{}
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

// netrcWord is the first word of a line, if it has one, and what is after that.
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

// unquoted is a text up to its quotation mark, if it has one, and what is after that.
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
