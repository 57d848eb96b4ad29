package requirement

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Script is what a script says about itself (PEP 723, inline script metadata).
type Script struct {
	RequiresPython string   // a PEP 440 specifier, "" where it says none
	Dependencies   []string // PEP 508 requirements
}

// MaxScript is the longest source that is looked through, in bytes.
const MaxScript = 16 << 20

// maxBlock is the longest block that is parsed.
const maxBlock = 256 << 10

// block is the PEP's reference expression, with one group for the type and one for
// the content. It is matched with newlines alone.
var block = regexp.MustCompile(`(?m)^# /// ([a-zA-Z0-9-]+)$\s((?:^#(?:| .*)$\s)+)^# ///$`)

// ReadScript returns the metadata of a script's source; nil where it has none. An error is
// one sentence with the line of the script. What the metadata says to tools ("[tool]") is
// not looked at.
func ReadScript(source []byte) (*Script, error) {
	if len(source) > MaxScript {
		return nil, fmt.Errorf("script is longer than %d MiB: start it from a module", MaxScript>>20)
	}
	source = bytes.TrimPrefix(source, []byte("\uFEFF"))
	source = bytes.ReplaceAll(source, []byte("\r\n"), []byte("\n")) // as Python reads its sources
	var content []byte
	line := 0 // of the block's first
	for _, at := range block.FindAllSubmatchIndex(source, -1) {
		if string(source[at[2]:at[3]]) != "script" {
			continue
		}
		here := 1 + bytes.Count(source[:at[0]], []byte("\n"))
		if line > 0 {
			return nil, fmt.Errorf("line %d: there is a second \"# /// script\" block, the first is on line %d: "+
				"keep one of them (PEP 723)", here, line)
		}
		content, line = source[at[4]:at[5]], here
	}
	if line == 0 {
		return nil, nil
	}
	if len(content) > maxBlock {
		return nil, fmt.Errorf("line %d: \"# /// script\" block is longer than %d KiB", line, maxBlock>>10)
	}
	return parseScript(uncomment(content), line)
}

// uncomment takes the comment signs away; the lines stay as many.
func uncomment(content []byte) string {
	var b strings.Builder
	for line := range strings.Lines(string(content)) {
		line = strings.TrimPrefix(line, "#")
		b.WriteString(strings.TrimPrefix(line, " "))
	}
	return b.String()
}

// parseScript reads the block's content, whose first line follows that of the script with
// this number. The TOML library's own messages show a line of the block, not of the script.
func parseScript(content string, line int) (*Script, error) {
	var found struct {
		RequiresPython any `toml:"requires-python"`
		Dependencies   any `toml:"dependencies"`
	}
	if err := toml.Unmarshal([]byte(content), &found); err != nil {
		var bad *toml.DecodeError
		if errors.As(err, &bad) {
			at, _ := bad.Position()
			return nil, fmt.Errorf("line %d: \"# /// script\" block is not TOML: %s", line+at, strings.TrimPrefix(sentence(bad.Error()), "toml: "))
		}
		return nil, fmt.Errorf("line %d: \"# /// script\" block is not TOML: %s", line, sentence(err.Error()))
	}
	m := &Script{}
	if found.RequiresPython != nil {
		text, ok := found.RequiresPython.(string)
		if !ok {
			return nil, fmt.Errorf("line %d: requires-python is no string: write it such as requires-python = \">=3.11\"",
				lineOf(content, "requires-python", line))
		}
		m.RequiresPython = strings.TrimSpace(text)
	}
	if found.Dependencies != nil {
		wrong := fmt.Errorf("line %d: dependencies is no list of strings: write it such as dependencies = [\"requests>=2.31\"]",
			lineOf(content, "dependencies", line))
		list, ok := found.Dependencies.([]any)
		if !ok {
			return nil, wrong
		}
		for _, entry := range list {
			text, ok := entry.(string)
			if !ok {
				return nil, wrong
			}
			m.Dependencies = append(m.Dependencies, text)
		}
	}
	return m, nil
}

// lineOf is the script's line on which a key of the block is written, or else the block's first.
func lineOf(content, key string, first int) int {
	n := first
	for text := range strings.Lines(content) {
		n++
		text = strings.TrimLeft(text, " \t[")
		if strings.HasPrefix(strings.TrimLeft(text, `"'`), key) {
			return n
		}
	}
	return first
}

// sentence is a message of the TOML library in one line.
func sentence(text string) string {
	return strings.Join(strings.Fields(text), " ")
}
