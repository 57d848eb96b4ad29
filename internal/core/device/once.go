// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"slices"

	"github.com/outrider-dev/outrider/internal/core/fingerprint"
)

// once logs a problem when it first appears, and not again at each check.
type once struct {
	log    func(msg string, args ...any)
	logged []string
}

// report logs the current problems that are new. It forgets problems that are no longer current.
func (o *once) report(sentences ...string) {
	for _, s := range sentences {
		if !slices.Contains(o.logged, s) {
			o.log(s)
		}
	}
	o.logged = sentences
}

// failed reports err as the only current problem.
func (o *once) failed(what string, err error) {
	sentence := what + ": " + err.Error()
	var p *fingerprint.PanicError
	if errors.As(err, &p) && !slices.Contains(o.logged, sentence) {
		o.log(sentence, "stack", string(p.Stack))
		o.logged = []string{sentence}
	}
	o.report(sentence)
}

// over forgets all problems, and reports whether there were any.
func (o *once) over() bool {
	was := len(o.logged) > 0
	o.logged = nil
	return was
}
