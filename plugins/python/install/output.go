package install

import (
	"bytes"
	"net/url"
	"regexp"
	"strings"
	"unicode"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// output takes what an installer writes, line by line, without what must not be seen.
type output struct {
	line    func(string) // each line
	secrets []string
	rest    []byte
	lines   []string // the last ones
}

const keptLines = 400

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.rest = append(o.rest, p...)
	for {
		i := bytes.IndexAny(o.rest, "\r\n") // a carriage return is a progress bar's
		if i < 0 && len(o.rest) > 1<<16 {
			i = len(o.rest) - 1
		}
		if i < 0 {
			return len(p), nil
		}
		o.take(string(o.rest[:i]))
		o.rest = o.rest[i+1:]
	}
}

// end takes a last line that has no end.
func (o *output) end() { o.take(string(o.rest)); o.rest = nil }

func (o *output) take(line string) {
	line = redact(strings.TrimRight(clean(line), " "), o.secrets)
	if strings.TrimSpace(line) == "" {
		return
	}
	if o.lines = append(o.lines, line); len(o.lines) > keptLines {
		o.lines = o.lines[len(o.lines)-keptLines:]
	}
	if o.line != nil {
		o.line(line)
	}
}

// cut is the beginning of a text, of at most so many bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

var (
	escapes = regexp.MustCompile("\x1b(\\[[0-9;?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)?|[@-_])") // ECMA-48
	places  = regexp.MustCompile("\\S*/[^\\s'\"`)>]*")                                                 // URLs, and paths of such
)

// clean leaves of a line what can be shown: no colours, no control characters, no broken UTF-8.
func clean(line string) string {
	line = escapes.ReplaceAllString(strings.ToValidUTF8(line, "?"), "")
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if !unicode.IsGraphic(r) {
			return '?'
		}
		return r
	}, line)
}

// redact takes what is secret, and what may be in any URL, out of a tool's words.
func redact(line string, secrets []string) string {
	for _, s := range secrets {
		line = strings.ReplaceAll(line, s, "****")
	}
	return places.ReplaceAllStringFunc(line, requirement.Redact)
}

// secretsOf are the passwords and the query of a URL, in the forms in which it may be written. One of less than four
// characters would take ordinary words with it, and is only taken out of URLs.
func secretsOf(u *url.URL) []string {
	var secrets []string
	add := func(s string) {
		if len(s) >= 4 {
			secrets = append(secrets, s)
		}
	}
	if password, ok := u.User.Password(); ok {
		add(password)
		_, escaped, _ := strings.Cut(u.User.String(), ":")
		add(escaped)
	} else if u.User != nil {
		add(u.User.Username()) // a token
	}
	add(u.RawQuery) // which may be one, too
	return secrets
}
