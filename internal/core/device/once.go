// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/outrider-dev/outrider/internal/core/fingerprint"
)

// once logs a problem when it first appears, and not again at each look.
type once struct {
	log  func(msg string, args ...any)
	said []string
}

// say takes all the problems that there are now, if any.
func (o *once) say(sentences ...string) {
	for _, s := range sentences {
		if !slices.Contains(o.said, s) {
			o.log(s)
		}
	}
	o.said = sentences
}

// failed takes the only error that there is now.
func (o *once) failed(what string, err error) {
	sentence := what + ": " + inWords(err)
	var p *fingerprint.PanicError
	if errors.As(err, &p) && !slices.Contains(o.said, sentence) {
		o.log(sentence, "stack", string(p.Stack))
		o.said = []string{sentence}
	}
	o.say(sentence)
}

// over forgets all problems, and reports whether there were any.
func (o *once) over() bool {
	was := len(o.said) > 0
	o.said = nil
	return was
}

// guard turns a panic in the plugin's own code into a *fingerprint.PanicError. The panic
// would otherwise end every stream and occur again at once in the next process.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &fingerprint.PanicError{Value: r, Stack: debug.Stack()}
		}
	}()
	return f()
}

func inWords(err error) string {
	var p *fingerprint.PanicError
	if errors.As(err, &p) {
		return fmt.Sprintf("panic: %v", p.Value)
	}
	return err.Error()
}
