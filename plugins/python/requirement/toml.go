package requirement

import (
	"errors"
	"fmt"
	"strings"

	"github.com/BurntSushi/toml"
)

const (
	maxLock  = 4 << 20 // bytes of a TOML lock; those of large projects have one MiB
	maxDepth = 20      // of values within values; a lock has three
	maxKey   = 256     // bytes
)

// decode reads a lock that is TOML.
func decode(name string, read Reader, into any) (toml.MetaData, error) {
	content, err := read(name)
	if err != nil {
		return toml.MetaData{}, fmt.Errorf("failed to read lock %s: %w", name, err)
	}
	if len(content) > maxLock {
		return toml.MetaData{}, fmt.Errorf("%s is larger than %d MiB, which no lock is", name, maxLock>>20)
	}
	if line := tooMuch(string(content)); line > 0 {
		return toml.MetaData{}, fmt.Errorf("%s:%d: there are longer keys, or more values within values, than a lock has", name, line)
	}
	meta, err := toml.Decode(string(content), into)
	var syntax toml.ParseError
	switch {
	case errors.As(err, &syntax):
		return meta, fmt.Errorf("%s:%d: this is not TOML: %s", name, syntax.Position.Line, plain(syntax.Message))
	case err != nil: // of another type than the specification's
		return meta, fmt.Errorf("%s is not such a lock: %s", name, plain(err.Error()))
	}
	return meta, nil
}

// tooMuch returns the line in which values are nested too deeply or a key is too long,
// 0 if there is none. The decoder recurses, and a stack that overflows ends the
// process; and it keeps all of its tables' names for each key.
func tooMuch(content string) int {
	depth, dots, line := 0, 0, 1
	key, header := 0, true // where a key may have begun; whether a table's name may
	for i := 0; i < len(content); i++ {
		c := content[i]
		if c == '[' && depth == 0 && header {
			if end := strings.IndexByte(content[i:], '\n'); end > maxKey || end < 0 && len(content)-i > maxKey {
				return line
			}
		}
		header = c == '\n' || header && (c == ' ' || c == '\t')
		switch c {
		case '\n':
			line++
			dots, key = 0, i
		case ',':
			dots, key = 0, i
		case '=':
			if i-key > maxKey {
				return line
			}
			dots = 0
		case '#':
			for i+1 < len(content) && content[i+1] != '\n' {
				i++
			}
		case '"', '\'':
			end := skipString(content[i:])
			line += strings.Count(content[i:i+end], "\n")
			i += end - 1
		case '[', '{':
			depth++
			key = i
		case ']', '}':
			depth--
		case '.':
			dots++
		}
		if depth > maxDepth || dots > maxDepth {
			return line
		}
	}
	return 0
}

// skipString returns the length of the string that a text begins with.
func skipString(text string) int {
	quote, escapes := text[:1], text[0] == '"'
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(text, triple) {
		quote = triple
	}
	for i := len(quote); i < len(text); i++ {
		switch {
		case escapes && text[i] == '\\':
			i++
		case strings.HasPrefix(text[i:], quote):
			i += len(quote)
			if len(quote) == 3 { // up to two quotes before the end are of the string
				for n := 0; n < 2 && i < len(text) && text[i] == quote[0]; n++ {
					i++
				}
			}
			return i
		case len(quote) == 1 && text[i] == '\n': // an error, which the decoder tells
			return i
		}
	}
	return len(text)
}
