// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// marker is the condition of a requirement (dependency specifiers, PEP 508): "and" and "or" of others, or a comparison.
type marker struct {
	op          string // "and", "or", "==", "in", …
	of          []*marker
	left, right string // of a comparison: a variable, or a text in quotes
}

var (
	comparison = regexp.MustCompile(`^(?:===|==|~=|!=|<=|>=|<|>|in\b|not[ \t]+in\b)`)
	variable   = regexp.MustCompile(`^[a-z][a-z_.]*`)
	boolean    = regexp.MustCompile(`^(?:and|or)\b`)
)

// requirementVariables are those of PEP 508, with the names that PEP 345 had.
var requirementVariables = map[string]string{
	"os_name": "", "sys_platform": "", "platform_machine": "", "platform_python_implementation": "",
	"platform_release": "", "platform_system": "", "platform_version": "", "python_version": "",
	"python_full_version": "", "implementation_name": "", "implementation_version": "", "extra": "",
	"os.name": "os_name", "sys.platform": "sys_platform", "platform.version": "platform_version",
	"platform.machine": "platform_machine", "platform.python_implementation": "platform_python_implementation",
	"python_implementation": "platform_python_implementation",
}

// maxNested bounds parentheses.
const maxNested = 50

func parseMarker(text string, variables map[string]string) (*marker, error) {
	p := markerParser{scanner{text}, variables}
	m, err := p.either(0)
	if err == nil {
		if p.blank(); p.rest != "" {
			err = fmt.Errorf("it is not understood from %s on", show(p.rest))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("its marker is wrong: %w (write it as 'python_version < \"3.13\"')", err)
	}
	return m, nil
}

type markerParser struct {
	scanner
	variables map[string]string
}

// either is for "or", which binds less than "and".
func (p *markerParser) either(depth int) (*marker, error) { return p.list("or", depth, p.all) }

func (p *markerParser) all(depth int) (*marker, error) { return p.list("and", depth, p.one) }

func (p *markerParser) list(op string, depth int, part func(int) (*marker, error)) (*marker, error) {
	var of []*marker
	for {
		m, err := part(depth)
		if err != nil {
			return nil, err
		}
		of = append(of, m)
		p.blank()
		if boolean.FindString(p.rest) != op {
			return join(op, of), nil
		}
		p.skip(op)
	}
}

func (p *markerParser) one(depth int) (*marker, error) {
	p.blank()
	if p.skip("(") {
		if depth == maxNested {
			return nil, errors.New("it has too many parentheses")
		}
		m, err := p.either(depth + 1)
		if err != nil {
			return nil, err
		}
		if p.blank(); !p.skip(")") {
			return nil, errors.New("a parenthesis is not closed")
		}
		return m, nil
	}
	left, err := p.operand()
	if err != nil {
		return nil, err
	}
	p.blank()
	op := strings.Join(strings.Fields(p.take(comparison)), " ")
	if op == "" {
		return nil, fmt.Errorf("%s is not a comparison such as ==, >= or in", show(p.rest))
	}
	p.blank()
	right, err := p.operand()
	if err != nil {
		return nil, err
	}
	if isText(left) == isText(right) {
		return nil, errors.New("a comparison is not between a variable and a text in quotes")
	}
	return &marker{op: op, left: left, right: right}, nil
}

func (p *markerParser) operand() (string, error) {
	for _, quote := range []string{`"`, `'`} {
		if !p.skip(quote) {
			continue
		}
		value, rest, ok := strings.Cut(p.rest, quote)
		if !ok {
			return "", errors.New("a quote is not closed")
		}
		for i, c := range value {
			// an installer would take it for the beginning of an option or of a comment
			option := i > 0 && value[i-1] == ' ' && (c == '-' || c == '#')
			if c < ' ' || c > '~' || c == '\\' || option {
				return "", fmt.Errorf("the text %s has %q in it, which requirements files can't have there", show(value), c)
			}
		}
		p.rest = rest
		if strings.Contains(value, `"`) {
			return `'` + value + `'`, nil
		}
		return `"` + value + `"`, nil
	}
	name := p.take(variable)
	modern, ok := p.variables[name]
	switch {
	case !ok:
		return "", fmt.Errorf("%s is neither a variable of the environment, such as python_version, nor a text in quotes",
			show(name+p.rest))
	case modern != "":
		return modern, nil
	}
	return name, nil
}

func isText(operand string) bool { return operand[0] == '"' || operand[0] == '\'' }

// operands are the variable of a comparison, and the text without its quotes.
func (m *marker) operands() (variable, text string) {
	variable, text = m.left, m.right
	if variable != "" && isText(variable) {
		variable, text = text, variable
	}
	return variable, strings.Trim(text, `"'`)
}

// join is of one operation, in which the same operation needs no parentheses.
func join(op string, of []*marker) *marker {
	if len(of) == 1 {
		return of[0]
	}
	m := &marker{op: op}
	for _, part := range of {
		if part.op == op {
			m.of = append(m.of, part.of...)
		} else {
			m.of = append(m.of, part)
		}
	}
	return m
}

// String has single blanks, and no parentheses but those that it needs.
func (m *marker) String() string {
	if m.of == nil {
		return m.left + " " + m.op + " " + m.right
	}
	parts := make([]string, len(m.of))
	for i, part := range m.of {
		parts[i] = part.String()
		if m.op == "and" && part.op == "or" {
			parts[i] = "(" + parts[i] + ")"
		}
	}
	return strings.Join(parts, " "+m.op+" ")
}

// decide evaluates the comparisons that known decides, and returns the rest: nil if nothing is left, with the value.
func (m *marker) decide(known func(*marker) (value, ok bool)) (*marker, bool) {
	if m.of == nil {
		if value, ok := known(m); ok {
			return nil, value
		}
		return m, false
	}
	ends := m.op == "or" // what makes the rest irrelevant
	var left []*marker
	for _, part := range m.of {
		rest, value := part.decide(known)
		if rest != nil {
			left = append(left, rest)
		} else if value == ends {
			return nil, ends
		}
	}
	if len(left) == 0 {
		return nil, !ends
	}
	return join(m.op, slices.Clip(left)), false
}
