// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"fmt"
	"reflect"
	"strings"
)

// CheckTargets returns an error for an argument to mage that is neither a target nor an option or argument of one.
// Mage itself reports that only after it has run the targets before it. Targets are given by name, each with the names
// of its arguments, or as the methods of namespaces.
func CheckTargets(args, names []string, namespaces ...any) error {
	required := map[string]int{}
	for _, name := range names {
		words := strings.Fields(name)
		required[words[0]] = len(words) - 1
	}
	for _, n := range namespaces {
		t := reflect.TypeOf(n)
		for m := range t.Methods() {
			needs := 0
			for in := range m.Type.Ins() {
				if in.Kind() == reflect.String {
					needs++
				}
			}
			required[strings.ToLower(t.Name()+":"+m.Name)] = needs
		}
	}
	for len(args) > 0 {
		target := args[0]
		args = args[1:]
		if strings.HasPrefix(target, "-") {
			continue
		}
		n, ok := required[strings.ToLower(target)]
		if !ok {
			return fmt.Errorf("%q is no target (see go tool mage -l); options have a name: lab:reload -plugin=exec-lite", target)
		}
		args = args[min(n, len(args)):]
	}
	return nil
}
