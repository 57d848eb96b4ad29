// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/base"
)

// Strings is a list that may be written as one string: id = "10c4:ea60" and
// id = ["10c4:ea60", "1a86:*"].
type Strings []string

var stringsType = reflect.TypeFor[Strings]()

// untyped reports whether the option is of type any in the HCL specification, which has no
// type for "a string or a list of them". Nor may any stand within a labelled block
// (hcldec.BlockMapSpec panics): such a block is of type any as a whole, and its
// bodies are checked here, with the same means and words as Nomad's.
func (o *option) untyped() bool {
	return o.typ == stringsType || o.kind == kindLabels && hasUntyped(o.nested)
}

func hasUntyped(options []*option) bool {
	return slices.ContainsFunc(options, func(o *option) bool { return o.untyped() || hasUntyped(o.nested) })
}

// normalize gives what is free in a configuration the form that the struct has. raw is
// the configuration decoded without a type, and is changed.
func normalize(path string, options []*option, raw map[string]any) (p Problems) {
	for _, o := range options {
		at, value := path+o.name, raw[o.name]
		if value == nil {
			delete(raw, o.name)
			continue
		}
		switch {
		case o.typ == stringsType:
			list, err := oneOrMore(at, value)
			if err != nil {
				p = append(p, err)
			}
			raw[o.name] = list
		case o.untyped():
			bodies, problems := o.bodies(at, value)
			p = append(p, problems...)
			raw[o.name] = bodies
		case o.kind == kindBlock:
			if body, ok := value.(map[string]any); ok {
				p = append(p, normalize(at+".", o.nested, body)...)
			}
		}
	}
	return p
}

// hasLabels reports whether there is a labelled block, at any depth.
func hasLabels(options []*option) bool {
	return slices.ContainsFunc(options, func(o *option) bool { return o.kind == kindLabels || hasLabels(o.nested) })
}

// fill decodes a body into its struct. Each labelled block is decoded alone: of a
// map of structs the decoder makes every value out of the one before, with the
// slices and maps of that (codec.DecodeOptions, MapValueReset).
func fill(v reflect.Value, options []*option, raw map[string]any) error {
	rest := maps.Clone(raw)
	for _, o := range options {
		body, ok := raw[o.name].(map[string]any)
		if !ok || o.kind != kindLabels && (o.kind != kindBlock || !hasLabels(o.nested)) {
			continue
		}
		delete(rest, o.name)
		field := v.FieldByIndex(o.index)
		if o.pointer {
			field.Set(reflect.New(o.typ))
			field = field.Elem()
		}
		if o.kind == kindBlock {
			if err := fill(field, o.nested, body); err != nil {
				return err
			}
			continue
		}
		all := reflect.MakeMapWithSize(o.typ, len(body))
		for label, inner := range body {
			inner, _ := inner.(map[string]any)
			one := reflect.New(o.typ.Elem()).Elem()
			if err := fill(one, o.nested, inner); err != nil {
				return err
			}
			all.SetMapIndex(reflect.ValueOf(label), one)
		}
		field.Set(all)
	}
	var data []byte
	if err := base.MsgPackEncode(&data, rest); err != nil {
		return err
	}
	return base.MsgPackDecode(data, v.Addr().Interface())
}

func oneOrMore(path string, value any) ([]string, error) {
	items, isList := value.([]any)
	if !isList {
		items = []any{value}
	}
	list := make([]string, len(items))
	for i, item := range items {
		at := path
		if isList {
			at = fmt.Sprintf("%s[%d]", path, i)
		}
		switch item := item.(type) {
		case string:
			list[i] = item
		case int64, uint64:
			return nil, fmt.Errorf("%s %d is a number: put it in quotes, without which 0x%04x arrives as %d", at, item, item,
				item)
		case map[string]any, []any:
			return nil, fmt.Errorf("%s is neither a string nor a list of strings", at)
		default:
			return nil, fmt.Errorf("%s %v is not a string: put it in quotes", at, item)
		}
	}
	return list, nil
}

// bodies are those of a labelled block, decoded. An agent's configuration has them
// as a list of maps of lists with one map each (HCL1), or as plain maps (JSON).
func (o *option) bodies(path string, value any) (map[string]any, Problems) {
	var p Problems
	all := map[string]any{}
	blocks := mapsOf(value)
	if len(blocks) == 0 {
		p.addf("%s is not a block: write %s %q { … }", path, path, strings.ToUpper(o.label))
	}
	for _, labelled := range blocks {
		for _, label := range slices.Sorted(maps.Keys(labelled)) {
			written := mapsOf(labelled[label])
			_, twice := all[label]
			switch {
			case len(written) == 0:
				p.addf("%s has no label: write %s %q { … }", path, path, strings.ToUpper(o.label))
			case twice || len(written) > 1:
				p.addf("%s %q is there twice: give each a %s of its own", path, label, o.label)
			default:
				body, problems := o.body(fmt.Sprintf("%s %q: ", path, label), written[0])
				p = append(p, problems...)
				all[label] = body
			}
		}
	}
	return all, p
}

func (o *option) body(path string, written map[string]any) (map[string]any, Problems) {
	var p Problems
	data, errs := encode(o.nested, escape(written))
	for _, err := range errs {
		p.addf("%s%w", path, err)
	}
	if len(p) > 0 {
		return nil, p
	}
	var body map[string]any
	if err := base.MsgPackDecode(data, &body); err != nil {
		p.addf("%sfailed to decode: %w", path, err)
		return nil, p
	}
	return body, normalize(path, o.nested, body)
}

// mapsOf is the map or the list of maps that value is, empty if it is neither.
func mapsOf(value any) []map[string]any {
	switch value := value.(type) {
	case map[string]any:
		return []map[string]any{value}
	case []map[string]any:
		return value
	case []any:
		var all []map[string]any
		for _, item := range value {
			if m, ok := item.(map[string]any); ok {
				all = append(all, m)
			}
		}
		return all
	}
	return nil
}

// escape keeps text from being read as a template a second time.
func escape(value any) any {
	switch value := value.(type) {
	case string:
		return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(value)
	case map[string]any:
		all := make(map[string]any, len(value))
		for k, v := range value {
			all[k] = escape(v)
		}
		return all
	case []any:
		all := make([]any, len(value))
		for i, v := range value {
			all[i] = escape(v)
		}
		return all
	}
	return value
}
