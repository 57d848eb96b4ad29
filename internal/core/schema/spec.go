// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"fmt"
	"strings"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/zclconf/go-cty/cty"
)

// specOf returns the HCL specification of a block that contains these options.
func specOf(options []*option) *hclspec.Spec {
	attrs := make(map[string]*hclspec.Spec, len(options))
	for _, o := range options {
		attrs[o.name] = o.spec()
	}
	return hclspec.NewObject(attrs)
}

func (o *option) spec() *hclspec.Spec {
	switch o.kind {
	case kindBlock:
		block := hclspec.NewBlock(o.name, false, specOf(o.nested))
		if o.pointer {
			return block
		}
		// without this, the options of an absent block would have zero values instead of their defaults
		return hclspec.NewDefault(block, hclspec.NewLiteral(o.literal()))
	case kindBlocks:
		return hclspec.NewBlockList(o.name, specOf(o.nested))
	case kindMap:
		// A user may write env { … } or env = { … }. These differ in the JSON that Nomad reads. Block attributes accept both,
		// but an attribute of type map(string) does not.
		return hclspec.NewBlockAttrs(o.name, "string", false)
	}
	attr := hclspec.NewAttr(o.name, kinds[o.kind].hcl, o.required)
	if o.def == nil {
		return attr
	}
	return hclspec.NewDefault(attr, hclspec.NewLiteral(o.literal()))
}

// literal returns the option's default as an HCL expression.
func (o *option) literal() string {
	switch {
	case o.kind == kindBlock && !o.pointer:
		var b strings.Builder
		for _, n := range o.nested {
			fmt.Fprintf(&b, "%s = %s, ", n.name, n.literal())
		}
		return "{ " + strings.TrimSuffix(b.String(), ", ") + " }"
	case o.kind == kindBlocks:
		return "[]"
	case o.def == nil:
		return "null"
	}
	return o.quoted(*o.def)
}

// quoted returns text, a value of the option, as an HCL expression.
func (o *option) quoted(text string) string {
	if kinds[o.kind].hcl == "string" {
		return quote(text)
	}
	return text
}

// quote returns s as an HCL string literal.
func quote(s string) string { return string(hclwrite.TokensForValue(cty.StringVal(s)).Bytes()) }
