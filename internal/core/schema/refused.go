// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"fmt"
	"slices"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// refuser is a configuration that recognizes options only to refuse them with its own message, such
// as those of a driver that it replaces. Nomad refuses options that are not in the specification
// with a general message. Refused options are in the specification, with any value, but not in the
// documentation.
type refuser interface {
	// Refused returns the names of the options.
	Refused() []string

	// Refuse returns the error for the options that are set, at least one, in the order of Refused.
	Refuse(written []string) error
}

func refusedOf(r refuser, options []*option) []string {
	names := r.Refused()
	for i, name := range names {
		if slices.Contains(names[:i], name) || slices.ContainsFunc(options, func(o *option) bool { return o.name == name }) {
			panic(fmt.Sprintf("schema: %T: refused option %q is declared twice", r, name))
		}
	}
	return names
}

// admit adds refused options to a specification. Required strings are then left to validation,
// which comes after Refuse: a container's job may have no command, and Nomad's message about that
// would hide the one about its image.
func admit(attrs map[string]*hclspec.Spec, refused []string, options []*option) {
	for _, name := range refused {
		attrs[name] = hclspec.NewAttr(name, "any", false)
	}
	for _, o := range options {
		if o.required && kinds[o.kind].hcl == "string" {
			attrs[o.name].GetAttr().Required = false
		}
	}
}

// refuse returns the error of a refuser for the refused options in a body, nil without any.
func refuse(config any, refused []string, body map[string]any) error {
	written := slices.DeleteFunc(slices.Clone(refused), func(name string) bool { return body[name] == nil })
	if len(written) == 0 {
		return nil
	}
	return config.(refuser).Refuse(written)
}
