// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// kind is what an option is in HCL.
type kind int

const (
	kindString kind = iota
	kindBool
	kindInt
	kindFloat
	kindSize
	kindDuration
	kindList   // of a scalar
	kindMap    // of strings
	kindBlock  // struct or *struct
	kindBlocks // []struct
	kindLabels // map[string]struct
)

// kinds are the words for each kind: in documentation, in HCL's type expressions (scalars
// only), and as a value to copy.
var kinds = [...]struct{ name, hcl, sample string }{
	kindString:   {"string", "string", `""`},
	kindBool:     {"bool", "bool", "false"},
	kindInt:      {"integer", "number", "0"},
	kindFloat:    {"number", "number", "0"},
	kindSize:     {"size", "string", `"10MiB"`},
	kindDuration: {"duration", "string", `"30s"`},
	kindMap:      {name: "map of strings", sample: "{}"},
	kindBlock:    {name: "block"},
	kindBlocks:   {name: "block, repeatable"},
	kindLabels:   {name: "block, labelled with its "},
}

// option is one field of the struct.
type option struct {
	name     string
	doc      string
	kind     kind
	elem     kind // of a kindList
	index    []int
	typ      reflect.Type // of the field, without its pointer
	pointer  bool
	required bool
	def      *string
	enum     []string
	min, max *bound
	label    string
	nested   []*option
}

// bound is one end of a range: its text, and the value to compare with. A float64
// is exact to 2^53, which is 8 PiB.
type bound struct {
	text  string
	value float64
}

var (
	sizeType     = reflect.TypeFor[Size]()
	durationType = reflect.TypeFor[Duration]()

	knownTags = map[string]bool{"codec": true, "doc": true, "default": true, "required": true, "enum": true,
		"min": true, "max": true, "label": true, "json": true}
)

// optionsOf reads the fields of a struct, those of embedded structs in their place.
func optionsOf(t reflect.Type) []*option {
	var all []*option
	seen := map[string]bool{}
	var walk func(t reflect.Type, index []int)
	walk = func(t reflect.Type, index []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			at := append(append([]int{}, index...), i)
			name, tagged := f.Tag.Lookup("codec")
			switch {
			case f.Anonymous && !tagged && f.Type.Kind() == reflect.Struct:
				walk(f.Type, at)
				continue
			case name == "-" || !f.IsExported():
				continue
			}
			o := parse(t, f)
			if seen[o.name] {
				panic(fmt.Sprintf("schema: %s: option %q is declared twice", t, o.name))
			}
			seen[o.name] = true
			o.index = at
			all = append(all, o)
		}
	}
	walk(t, nil)
	return all
}

func parse(t reflect.Type, f reflect.StructField) *option {
	bad := func(format string, args ...any) {
		panic(fmt.Sprintf("schema: %s.%s: %s", t, f.Name, fmt.Sprintf(format, args...)))
	}
	tags, err := splitTag(string(f.Tag))
	if err != nil {
		bad("%v", err)
	}
	for key := range tags {
		if !knownTags[key] {
			bad("tag %q is not known", key)
		}
	}
	o := &option{name: tags["codec"], doc: tags["doc"], typ: f.Type, label: "name"}
	if o.name == "" || strings.Contains(o.name, ",") {
		bad("the codec tag must be the option's name alone")
	}
	if o.doc == "" {
		bad("the doc tag is missing")
	}
	if o.typ.Kind() == reflect.Pointer {
		o.pointer, o.typ = true, o.typ.Elem()
	}
	switch k, ok := scalar(o.typ); {
	case ok:
		o.kind = k
	case o.typ.Kind() == reflect.Struct:
		o.kind, o.nested = kindBlock, optionsOf(o.typ)
	case o.pointer:
		bad("a pointer to %s is not supported", o.typ)
	case o.typ.Kind() == reflect.Slice && o.typ.Elem().Kind() == reflect.Struct:
		o.kind, o.nested = kindBlocks, optionsOf(o.typ.Elem())
		if hasUntyped(o.nested) {
			bad("a Strings in a repeated block is not supported: use a labelled one")
		}
	case o.typ.Kind() == reflect.Slice:
		if o.elem, ok = scalar(o.typ.Elem()); !ok {
			bad("a list of %s is not supported", o.typ.Elem())
		}
		o.kind = kindList
	case o.typ == reflect.TypeFor[map[string]string]():
		o.kind = kindMap
	case o.typ.Kind() == reflect.Map && o.typ.Key().Kind() == reflect.String && o.typ.Elem().Kind() == reflect.Struct:
		o.kind, o.nested = kindLabels, optionsOf(o.typ.Elem())
	default:
		bad("type %s is not supported", f.Type)
	}

	switch tags["required"] {
	case "true":
		o.required = true
	case "":
	default:
		bad(`required is "true" or absent`)
	}
	if l, ok := tags["label"]; ok {
		if o.label = l; o.kind != kindLabels {
			bad("only a map of structs has a label")
		}
	}
	if d, ok := tags["default"]; ok {
		o.def = &d
		switch {
		case o.required:
			bad("a required option has no default")
		case o.pointer:
			bad("a pointer has no default: it says that the option may be unset")
		case o.kind >= kindMap:
			bad("a %s has no default tag", o.typeName())
		}
	}
	if e, ok := tags["enum"]; ok {
		o.enum = strings.Split(e, ",")
		if o.kind != kindString && (o.kind != kindList || o.elem != kindString) {
			bad("only strings have an enum")
		}
	}
	o.min, o.max = o.bound(tags, "min", bad), o.bound(tags, "max", bad)

	zeroRefused := o.min != nil && o.min.value > 0 || o.max != nil && o.max.value < 0
	if zeroRefused && (o.kind == kindInt || o.kind == kindFloat) && !o.pointer && !o.required && o.def == nil {
		bad("0 would mean both unset and out of range: use a pointer or a default")
	}
	if o.kind == kindBlock && !o.pointer && !o.required {
		for _, n := range o.nested {
			if n.required {
				bad("%q is required in a block that need not be there: use a pointer", n.name)
			}
		}
	}
	return o
}

func (o *option) bound(tags map[string]string, key string, bad func(string, ...any)) *bound {
	text, ok := tags[key]
	if !ok {
		return nil
	}
	var v float64
	var err error
	switch o.kind {
	case kindSize:
		var n int64
		n, err = ParseSize(text)
		v = float64(n)
	case kindDuration:
		var d int64
		d, err = parseDuration(text)
		v = float64(d)
	case kindInt, kindFloat, kindList, kindBlocks, kindLabels:
		v, err = strconv.ParseFloat(text, 64)
	default:
		bad("a %s has no %s", o.typeName(), key)
	}
	if err != nil {
		bad("%s: %v", key, err)
	}
	return &bound{text, v}
}

func scalar(t reflect.Type) (kind, bool) {
	switch {
	case t == sizeType:
		return kindSize, true
	case t == durationType:
		return kindDuration, true
	case t.PkgPath() == "time":
		return 0, false // time.Duration is an int64 that HCL would fill with nanoseconds
	}
	switch t.Kind() {
	case reflect.String:
		return kindString, true
	case reflect.Bool:
		return kindBool, true
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return kindInt, true
	case reflect.Float32, reflect.Float64:
		return kindFloat, true
	}
	return 0, false
}

// splitTag reads a struct tag whole, where reflect's Lookup is silent about
// what it cannot read.
func splitTag(tag string) (map[string]string, error) {
	tags := map[string]string{}
	for tag = strings.TrimSpace(tag); tag != ""; tag = strings.TrimSpace(tag) {
		key, rest, ok := strings.Cut(tag, ":")
		quoted, err := strconv.QuotedPrefix(rest)
		if !ok || err != nil {
			return nil, fmt.Errorf("malformed tag at %q", tag)
		}
		value, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("malformed tag at %q", tag)
		}
		if _, twice := tags[key]; twice {
			return nil, fmt.Errorf("tag %q is given twice", key)
		}
		tags[key], tag = value, rest[len(quoted):]
	}
	return tags, nil
}
