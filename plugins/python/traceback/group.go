// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package traceback

import (
	"slices"
	"strings"
)

// maxGroups bounds the nesting of groups; Python itself shows ten levels.
const maxGroups = 12

// leaf is an exception within a group that is not a group itself.
type leaf struct {
	text   string   // empty if none was found
	frames []string // the innermost first
}

// firstLeaf is the first exception within a group. If that is a group too, it is the first within that one. lines
// follow the first line of the group, and indent is that of its lines:
//
//	| ExceptionGroup: several (2 sub-exceptions)
//	+-+---------------- 1 ----------------
//	  | Traceback (most recent call last):
//	  |   File "app.py", line 4, in f
//	  | ValueError: a
//	  +---------------- 2 ----------------
func firstLeaf(lines []string, indent string, depth int) (found leaf) {
	begin := slices.IndexFunc(lines, func(l string) bool { return !strings.HasPrefix(l, indent+"|") })
	if depth == maxGroups || begin < 0 || lines[begin] != indent+"+-+---------------- 1 ----------------" {
		return leaf{}
	}
	inner := indent + "  "
	first, traced := true, false // a line may be an exception if it is the first, or ends a traceback
	var frames []string
	for i, line := range lines[begin+1:] {
		text, own := strings.CutPrefix(line, inner+"|")
		text = strings.TrimPrefix(text, " ")
		switch {
		case strings.HasPrefix(line, inner+"+-+"):
			if l := firstLeaf(lines[begin+1+i:], inner, depth+1); l.text != "" {
				found = leaf{l.text, slices.Concat(l.frames, found.frames)}
			}
		case !own && strings.HasPrefix(line, inner+" "): // of a group within this one
		case !own:
			return found
		case header.MatchString(text):
			first, traced, frames = false, true, nil
		case traced && frame.MatchString(text):
			frames = append(frames, text)
		case (first || traced && text != "" && text[0] != ' ') && exception.MatchString(text):
			slices.Reverse(frames)
			found, frames = leaf{strings.TrimSuffix(text, ":"), frames}, nil
			first, traced = false, false
		default:
			first = false
		}
	}
	return found
}
