// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import "fmt"

// Trim removes the options that are not set, or have their default, from the decoded body of a configuration. A version
// with more options trims the same configuration to the same body.
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
			unset = len(value) == 0 && !o.pointer // a pointer is nil only for an absent block
		default:
			unset = o.def != nil && fmt.Sprint(value) == *o.def
		}
		if unset {
			delete(body, o.name)
		}
	}
}
