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

// specOf is the specification of a body with these options.
func specOf(options []*option) *hclspec.Spec {
	attrs := make(map[string]*hclspec.Spec, len(options))
	for _, o := range options {
		attrs[o.name] = o.spec()
	}
	return hclspec.NewObject(attrs)
}

func (o *option) spec() *hclspec.Spec {
	if o.untyped() && o.kind == kindLabels {
		return hclspec.NewAttr(o.name, "any", o.required)
	}
	switch o.kind {
	case kindBlock:
		block := hclspec.NewBlock(o.name, o.required, specOf(o.nested))
		if o.pointer || o.required {
			return block
		}
		// an absent block would decode to zeros, not to its defaults
		return hclspec.NewDefault(block, hclspec.NewLiteral(o.literal()))
	case kindBlocks:
		return hclspec.NewBlockList(o.name, specOf(o.nested))
	case kindLabels:
		return hclspec.NewBlockMap(o.name, []string{o.label}, specOf(o.nested))
	case kindMap:
		// Read from JSON, as Nomad does, this takes both the block and the
		// attribute, which an attribute of type map(string) does not.
		return hclspec.NewBlockAttrs(o.name, "string", o.required)
	}
	attr := hclspec.NewAttr(o.name, o.hclType(), o.required)
	if o.def == nil {
		return attr
	}
	return hclspec.NewDefault(attr, hclspec.NewLiteral(o.literal()))
}

func (o *option) hclType() string {
	if o.untyped() {
		return "any"
	}
	if o.kind == kindList {
		return "list(" + kinds[o.elem].hcl + ")"
	}
	return kinds[o.kind].hcl
}

// literal is the option's default as an HCL expression.
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
	case o.kind == kindList:
		var items []string
		for _, item := range splitList(*o.def) {
			items = append(items, quoteAs(o.elem, item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	return quoteAs(o.kind, *o.def)
}

func quoteAs(k kind, text string) string {
	if kinds[k].hcl == "string" {
		return quote(text)
	}
	return text
}

// quote writes an HCL string literal.
func quote(s string) string { return string(hclwrite.TokensForValue(cty.StringVal(s)).Bytes()) }

func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}
