// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
)

// Script is the metadata that a script declares (PEP 723, inline script metadata).
type Script struct {
	RequiresPython string   `toml:"requires-python"` // a PEP 440 specifier, "" where it declares none
	Dependencies   []string `toml:"dependencies"`    // PEP 508 requirements
	Tool           tool     `toml:"tool"`
}

// Set is what the script requires.
func (s *Script) Set() (*Set, error) {
	if len(s.Dependencies) == 0 {
		return &Set{}, nil
	}
	p := pyproject{Project: &projectTable{Name: "script", Dependencies: s.Dependencies}, Tool: s.Tool}
	return p.set(Choice{})
}

// MaxScript is the size of the longest source that is searched, in bytes.
const MaxScript = 16 << 20

// maxBlock is the longest block that is parsed.
const maxBlock = 256 << 10

// block is the PEP's reference expression, with one group for the type and one for the content. It is matched with
// newlines alone.
var block = regexp.MustCompile(`(?m)^# /// ([a-zA-Z0-9-]+)$\s((?:^#(?:| .*)$\s)+)^# ///$`)

// ReadScript returns the metadata of a script's source, the zero value where it has none. An error is one sentence with
// the line of the script.
func ReadScript(source []byte) (Script, error) {
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
			return Script{}, fmt.Errorf("line %d: there is a second \"# /// script\" block, the first is on line %d: "+
				"keep one of them (PEP 723)", here, line)
		}
		content, line = source[at[4]:at[5]], here
	}
	if line == 0 {
		return Script{}, nil
	}
	if len(content) > maxBlock {
		return Script{}, fmt.Errorf("line %d: \"# /// script\" block is longer than %d KiB", line, maxBlock>>10)
	}
	var s Script
	lines := bytes.Repeat([]byte("\n"), line) // so that those of an error are the script's
	if err := decode(append(lines, uncomment(content)...), &s); err != nil {
		return Script{}, fmt.Errorf("\"# /// script\" block: %w", err)
	}
	s.RequiresPython = strings.TrimSpace(s.RequiresPython)
	return s, nil
}

// uncomment takes the comment signs away, and keeps the number of lines.
func uncomment(content []byte) []byte {
	var all []byte
	for line := range bytes.Lines(content) {
		all = append(all, bytes.TrimPrefix(bytes.TrimPrefix(line, []byte("#")), []byte(" "))...)
	}
	return all
}
