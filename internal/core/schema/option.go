// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kind is the type of an option in HCL.
type kind int

const (
	kindString kind = iota
	kindBool
	kindInt
	kindSize
	kindDuration
	kindList    // []string
	kindStrings // Strings
	kindMap     // map[string]string
	kindBlock   // struct or *struct
	kindBlocks  // []struct
	kindLabels  // map[string]struct
)

// kinds has, for each kind, the name in the documentation, the type expression in HCL, and a sample value. HCL has no
// type for "a string or a list of strings", so kindStrings has type "any". A labelled block must not contain "any"
// (hcldec.BlockMapSpec panics), so a labelled block as a whole has type "any".
var kinds = [...]struct{ name, hcl, sample string }{
	kindString:   {"string", "string", `""`},
	kindBool:     {"bool", "bool", "false"},
	kindInt:      {"integer", "number", "0"},
	kindSize:     {"size", "string", `"10MiB"`},
	kindDuration: {"duration", "string", `"30s"`},
	kindList:     {"list of strings", "list(string)", `[""]`},
	kindStrings:  {"string or list of strings", "any", `""`},
	kindMap:      {name: "map of strings", sample: "{}"},
	kindBlock:    {name: "block"},
	kindBlocks:   {name: "block, repeatable"},
	kindLabels:   {name: "block, labelled with its ", hcl: "any"},
}

// option is one option of a configuration. It belongs to one field of the struct.
type option struct {
	name     string
	doc      string
	kind     kind
	index    []int
	typ      reflect.Type // the field's type, or the type that the field points to
	pointer  bool
	required bool
	def      *string
	enum     []string
	min, max *bound
	label    string
	nested   []*option
}

// bound is one end of a range: the text in the tag, and its value as kind.number returns it.
type bound struct {
	text  string
	value int64
}

// tagKey finds the keys of a struct tag. It relies on go vet to check the tag's syntax.
var tagKey = regexp.MustCompile(`(\w+):"`)

var knownTags = []string{"codec", "doc", "default", "required", "enum", "min", "max", "label"}

// optionsOf returns the options of a struct in the order of its fields. An embedded struct's options take its place.
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
	tags := map[string]string{}
	for _, match := range tagKey.FindAllStringSubmatch(string(f.Tag), -1) {
		key := match[1]
		if !slices.Contains(knownTags, key) {
			bad("unknown tag %q", key)
		}
		tags[key] = f.Tag.Get(key)
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
	var known bool
	if o.kind, known = kindOf(o.typ); !known || o.pointer && o.kind >= kindList && o.kind != kindBlock {
		bad("type %s is not supported", f.Type)
	}
	switch o.kind {
	case kindBlock:
		o.nested = optionsOf(o.typ)
	case kindBlocks, kindLabels:
		o.nested = optionsOf(o.typ.Elem())
		if o.kind == kindBlocks && hasUntyped(o.nested) {
			bad("a Strings in a repeated block is not supported: use a labelled block")
		}
	}

	def, hasDefault := tags["default"]
	switch tags["required"] {
	case "true":
		o.required = true
	case "":
	default:
		bad(`required must be "true" or absent`)
	}
	switch {
	case !o.required && !hasDefault:
	case o.required && hasDefault:
		bad("a required option can't have a default")
	case o.pointer:
		bad("a pointer can't have a default or be required: it means that the option may be unset")
	case o.kind >= kindList:
		bad("a %s can't have a default or be required", o.typeName())
	}
	if l, ok := tags["label"]; ok {
		o.label = l
		if o.kind != kindLabels {
			bad("only a map of structs has a label")
		}
	}
	if e, ok := tags["enum"]; ok {
		o.enum = strings.Split(e, ",")
		if o.kind != kindString {
			bad("only strings have an enum")
		}
	}
	o.min, o.max = o.bound(tags, "min", bad), o.bound(tags, "max", bad)
	if hasDefault {
		o.def = &def
		v := reflect.New(o.typ).Elem()
		err := o.setDefault(v)
		if err == nil {
			err = o.validate(v)
		}
		if err != nil {
			bad("default %v", err)
		}
	}

	zeroRefused := o.min != nil && o.min.value > 0 || o.max != nil && o.max.value < 0
	if zeroRefused && o.kind == kindInt && !o.pointer && !o.required && o.def == nil {
		bad("0 would mean both unset and out of range: use a pointer or a default")
	}
	if o.kind == kindBlock && !o.pointer {
		for _, n := range o.nested {
			if n.required {
				bad("%q is required in an optional block: use a pointer", n.name)
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
	v, err := o.kind.number(text)
	if err != nil {
		bad("%s: %v", key, err)
	}
	return &bound{text, v}
}

// number converts a value to a number that can be compared with bounds: a size to bytes, a duration to nanoseconds.
func (k kind) number(text string) (int64, error) {
	switch k {
	case kindInt:
		return strconv.ParseInt(text, 10, 64)
	case kindSize:
		return ParseSize(text)
	case kindDuration:
		return parseDuration(text)
	}
	return 0, fmt.Errorf("a %s has no range", kinds[k].name)
}

func kindOf(t reflect.Type) (kind, bool) {
	switch t {
	case reflect.TypeFor[Size]():
		return kindSize, true
	case reflect.TypeFor[Duration]():
		return kindDuration, true
	case reflect.TypeFor[Strings]():
		return kindStrings, true
	case reflect.TypeFor[[]string]():
		return kindList, true
	case reflect.TypeFor[map[string]string]():
		return kindMap, true
	case reflect.TypeFor[int](), reflect.TypeFor[int64]():
		return kindInt, true // time.Duration is not supported: a number in HCL would be nanoseconds
	}
	switch t.Kind() {
	case reflect.String:
		return kindString, true
	case reflect.Bool:
		return kindBool, true
	case reflect.Struct:
		return kindBlock, true
	case reflect.Slice:
		return kindBlocks, t.Elem().Kind() == reflect.Struct
	case reflect.Map:
		return kindLabels, t.Key().Kind() == reflect.String && t.Elem().Kind() == reflect.Struct
	}
	return 0, false
}

// hasUntyped reports whether an option, or one nested in it at any depth, has type "any". A repeatable block must not
// contain such an option.
func hasUntyped(options []*option) bool {
	return slices.ContainsFunc(options, func(o *option) bool {
		return kinds[o.kind].hcl == "any" || hasUntyped(o.nested)
	})
}
