// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package traceback

import (
	"slices"
	"strings"
)

// maxGroups bounds how deep groups are in each other; Python itself shows ten.
const maxGroups = 12

// leaf is an exception that a group has in it.
type leaf struct {
	text   string   // "" if there is none
	frames []string // the innermost first
}

// firstLeaf is the first exception of a group whose first line is before these; of one that is a group itself, its
// first. indent is that of the group's lines:
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
	first, traced := true, false // whether a line may be an exception: it is the first, or ends a traceback
	var frames []string
	for i, line := range lines[begin+1:] {
		text, own := strings.CutPrefix(line, inner+"|")
		text = strings.TrimPrefix(text, " ")
		switch {
		case strings.HasPrefix(line, inner+"+-+"):
			if l := firstLeaf(lines[begin+1+i:], inner, depth+1); l.text != "" {
				found = leaf{l.text, slices.Concat(l.frames, found.frames)}
			}
		case !own && strings.HasPrefix(line, inner+" "): // of a group in it
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
