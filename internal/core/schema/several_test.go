// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"errors"
	"testing"

	"github.com/shoenig/test"
)

type severalConfig struct {
	Size  int                     `codec:"size" default:"1" min:"1" doc:"A number."`
	Parts map[string]severalParts `codec:"part" label:"name" doc:"A part."`
}

type severalParts struct {
	Wrong int `codec:"wrong" doc:"How many mistakes it has."`
}

func (c severalConfig) Validate() error { return errors.New("the whole is wrong") }

func (p severalParts) Validate() error {
	var all Problems
	for range p.Wrong {
		all.Addf("one more")
	}
	return all.OrNil()
}

// A user should see all mistakes at once.
func TestValidate_ReportsAllMistakesOfAValidator(t *testing.T) {
	s := Of[severalConfig]()
	c := severalConfig{Size: 1, Parts: map[string]severalParts{"a": {Wrong: 2}, "b": {}, "c": {Wrong: 1}}}
	want := `part "a": one more; part "a": one more; part "c": one more; the whole is wrong`
	test.EqError(t, s.Validate(&c), want)
	c.Size = 0 // a mistake in an option of severalConfig, whose Validate is then not called
	want = `size 0 is too small: use 1 or more; part "a": one more; part "a": one more; part "c": one more`
	test.EqError(t, s.Validate(&c), want)
}
