// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import "fmt"

// Trim removes options that are not set, or that have their default, from the decoded body of a configuration. The
// result therefore stays the same when a later version of the program adds options.
func (s *Schema[T]) Trim(body map[string]any) { trim(body, s.options) }

func trim(body map[string]any, options []*option) {
	for _, o := range options {
		if o.kind == kindBlock || o.kind == kindBlocks {
			for _, nested := range mapsOf(body[o.name]) {
				trim(nested, o.nested)
			}
		}
		var unset bool
		switch value := body[o.name].(type) {
		case nil:
			unset = true
		case []any:
			unset = len(value) == 0
		case map[string]any:
			unset = len(value) == 0 && !o.pointer // for a pointer, an empty block is not the same as no block
		default:
			unset = o.def != nil && fmt.Sprint(value) == *o.def
		}
		if unset {
			delete(body, o.name)
		}
	}
}
