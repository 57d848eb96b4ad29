// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/outrider-dev/outrider/internal/core/plain"
)

// maxLock bounds a TOML lock, in bytes; those of large projects have one MiB.
const maxLock = 4 << 20

// decode reads a file that is TOML; what is the word for it: "lock".
func decode(what, name string, read Reader, into any) error {
	content, err := read(name)
	if err != nil {
		return fmt.Errorf("failed to read %s %s: %w", what, name, err)
	}
	if len(content) > maxLock {
		return fmt.Errorf("%s is larger than %d MiB, which no %s is", name, maxLock>>20, what)
	}
	if err := toml.Unmarshal(content, into); err != nil {
		line, why := explain(err)
		return fmt.Errorf("%s:%d: this is not TOML, or not such a %s: %s", name, line, what, why)
	}
	return nil
}

// explain is an error of the TOML library in one sentence, and its line, 0 where it has none.
func explain(err error) (line int, why string) {
	why = strings.TrimPrefix(plain.Line(err.Error(), 2*maxShown), "toml: ")
	var at *toml.DecodeError
	if errors.As(err, &at) {
		line, _ = at.Position()
		if what, _, ok := strings.Cut(why, " into struct field "); ok { // which is of this program
			why = strings.Join(at.Key(), ".") + ": " + what
		}
	}
	return line, why
}
