// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package interpreter

import (
	"fmt"
	"strings"
)

// VersionsAttribute is the node attribute with the versions of its interpreters, minor and full ones
// ("3.9,3.11,3.9.16,3.11.2"), that constraints are about.
const VersionsAttribute = "driver.python.versions"

// Constraint keeps a job from nodes without an interpreter that fits (Nomad's constraint block).
type Constraint struct {
	Operator string   // "set_contains_any", or "set_contains" of one exact version
	Value    string   // versions with commas between them
	Partial  []string // minor versions in Value of which not every release fits
	Open     bool     // later versions, which are not in Value, would fit too
}

// ConstraintFor is the constraint of a set of versions, nil where each interpreter of the driver fits. It is an error
// if none can.
func ConstraintFor(wanted Specifier) (*Constraint, error) {
	oldest := fmt.Sprintf("3.%d", oldestMinor)
	if version, ok := wanted.Exact(); ok && CompareVersions(version, oldest) >= 0 {
		return &Constraint{Operator: "set_contains", Value: version}, nil
	}
	c := &Constraint{Operator: "set_contains_any", Open: wanted.Allows("3.99.0")}
	var minors []string
	for _, minor := range wanted.Minors() {
		if CompareVersions(minor, oldest) < 0 {
			continue
		}
		minors = append(minors, minor)
		if !wanted.Covers(minor) {
			c.Partial = append(c.Partial, minor)
		}
	}
	if len(minors) == 0 {
		return nil, fmt.Errorf("%q allows no Python from %s on", wanted, oldest)
	}
	var all Specifier
	if c.Open && len(c.Partial) == 0 && len(minors) == len(all.Minors())-oldestMinor {
		return nil, nil
	}
	c.Value = strings.Join(minors, ",")
	return c, nil
}

// Block is the constraint as it is written into a job, as nomad fmt would.
func (c *Constraint) Block() string {
	return fmt.Sprintf("constraint {\n  attribute = \"${attr.%s}\"\n  operator  = %q\n  value     = %q\n}\n",
		VersionsAttribute, c.Operator, c.Value)
}

// String is the constraint in one line, for messages. (In a job each argument is on its own line.)
func (c *Constraint) String() string {
	return fmt.Sprintf("constraint { attribute = \"${attr.%s}\"; operator = %q; value = %q }", VersionsAttribute,
		c.Operator, c.Value)
}
