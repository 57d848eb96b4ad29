// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"fmt"
	"strings"
)

// Row describes one option in the documentation.
type Row struct {
	Option      string // with the path of its block, if any: logs.max_files
	Type        string // such as "string", "size", "list of strings" or "block"
	Default     string // as HCL; empty if the option has no default
	Required    bool
	Description string // including the allowed values or range
}

// Doc returns a row for every option.
func (s *Schema[T]) Doc() []Row { return rows("", s.options) }

func rows(path string, options []*option) (all []Row) {
	for _, o := range options {
		r := Row{Option: path + o.name, Type: o.typeName(), Required: o.required, Description: o.description()}
		if o.def != nil {
			r.Default = o.literal()
		}
		all = append(all, r)
		all = append(all, rows(path+o.name+".", o.nested)...)
	}
	return all
}

func (o *option) description() string {
	switch {
	case o.enum != nil:
		return o.doc + " One of " + choice(o.enum) + "."
	case o.min != nil || o.max != nil:
		return o.doc + " Allowed: " + o.span() + "."
	}
	return o.doc
}

func (o *option) typeName() string {
	if o.kind == kindLabels {
		return kinds[o.kind].name + o.label
	}
	return kinds[o.kind].name
}

// Table returns a Markdown table with these rows. If an earlier row describes an equal option in another block, the
// description is replaced with a reference to that row, unless the reference is longer.
func Table(rows []Row) string {
	var b strings.Builder
	b.WriteString("| Option | Type | Default | Description |\n|---|---|---|---|\n")
	shown := map[Row]string{} // maps a row without its block's path to the full path of the first such option
	for _, r := range rows {
		same := r
		same.Option = r.Option[strings.LastIndexByte(r.Option, '.')+1:]
		if shown[same] == "" {
			shown[same] = r.Option
		}
		as := "As `" + shown[same] + "`."
		if shown[same] != r.Option && len(as) < len(r.Description) {
			r.Description = as
		}

		def := ""
		switch {
		case r.Required:
			def = "required"
		case r.Default != "":
			def = "`" + cell(r.Default) + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Option, r.Type, def, cell(r.Description))
	}
	return b.String()
}

func cell(s string) string { return strings.NewReplacer("|", `\|`, "__", `\_\_`).Replace(s) }

// Example returns HCL for users to copy. It has every option with its default. Optional ones are commented out.
func (s *Schema[T]) Example(indent string) string {
	var b strings.Builder
	example(&b, indent, s.options)
	return b.String()
}

func example(b *strings.Builder, indent string, options []*option) {
	for i, o := range options {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(b, "%s# %s\n", indent, o.description())
		mark := "# "
		if o.required {
			mark = ""
		}
		switch {
		case o.nested != nil:
			label := ""
			if o.kind == kindLabels {
				label = " " + quote(strings.ToUpper(o.label))
			}
			fmt.Fprintf(b, "%s%s%s%s {\n", indent, mark, o.name, label)
			example(b, indent+mark+"  ", o.nested)
			fmt.Fprintf(b, "%s%s}\n", indent, mark)
		default:
			fmt.Fprintf(b, "%s%s%s = %s\n", indent, mark, o.name, o.sample())
		}
	}
}

// sample returns a valid value to show in the example: the option's default, if it has one.
func (o *option) sample() string {
	switch {
	case o.def != nil:
		return o.literal()
	case o.enum != nil:
		return quote(o.enum[0])
	case o.min != nil && o.min.value > 0:
		return o.quoted(o.min.text)
	}
	return kinds[o.kind].sample
}
