// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/plugins/base"
)

// Strings is a list of strings. A list with a single item may be written as a string: id = "10c4:ea60" is valid, and so
// is id = ["10c4:ea60", "1a86:*"].
type Strings []string

// assign sets the fields of the struct v from body, a block as generic maps and lists, and returns the mistakes. Nomad
// has already checked the body against the specification. It has not checked values of type "any", nor whether a number
// fits in an integer. Nomad's decoder is not used, because its errors name neither the option nor its value, and
// because a labelled block would start with the values of the block before it (codec.DecodeOptions, MapValueReset).
func assign(path string, v reflect.Value, options []*option, body map[string]any) (p Problems) {
	for _, o := range options {
		value := body[o.name]
		if value == nil {
			continue
		}
		field := v.FieldByIndex(o.index)
		if o.pointer {
			field.Set(reflect.New(o.typ))
			field = field.Elem()
		}
		p = append(p, o.assign(path+o.name, field, value)...)
	}
	return p
}

func (o *option) assign(path string, v reflect.Value, value any) (p Problems) {
	switch o.kind {
	case kindBlock:
		for _, body := range mapsOf(value) {
			p = append(p, assign(path+".", v, o.nested, body)...)
		}
	case kindBlocks:
		bodies := mapsOf(value)
		v.Set(reflect.MakeSlice(o.typ, len(bodies), len(bodies)))
		for i, body := range bodies {
			p = append(p, assign(fmt.Sprintf("%s[%d].", path, i), v.Index(i), o.nested, body)...)
		}
	case kindLabels:
		v.Set(reflect.MakeMap(o.typ))
		p = o.assignLabels(path, v, value)
	case kindMap:
		v.Set(reflect.MakeMap(o.typ))
		for _, all := range mapsOf(value) {
			for name, text := range all {
				if text == nil { // the value is null in HCL
					text = ""
				}
				v.SetMapIndex(reflect.ValueOf(name), reflect.ValueOf(fmt.Sprint(text)))
			}
		}
	case kindList, kindStrings:
		list, err := oneOrMore(path, value)
		if err != nil {
			return Problems{err}
		}
		v.Set(reflect.ValueOf(list).Convert(o.typ))
	case kindInt:
		n, err := whole(path, value)
		if err != nil {
			return Problems{err}
		}
		v.SetInt(n)
	default:
		got := reflect.ValueOf(value)
		if got.Kind() != o.typ.Kind() {
			p.Addf("%s %v is not a %s", path, value, o.typeName())
			return p
		}
		v.Set(got.Convert(o.typ))
	}
	return p
}

// whole returns the value of an integer option, or an error if it is not a whole number that fits in an int64. HCL
// accepts any number: too large a number arrives as a float64, or as text if a float64 would not be exact.
func whole(path string, value any) (int64, error) {
	switch n := value.(type) {
	case int64:
		return n, nil
	case uint64:
		if n <= math.MaxInt64 {
			return int64(n), nil
		}
	case float64:
		if n != math.Trunc(n) {
			return 0, fmt.Errorf("%s %v is not a whole number", path, n)
		}
		value = strconv.FormatFloat(n, 'f', -1, 64)
	}
	return 0, fmt.Errorf("%s %v is out of range: use %d to %d", path, value, math.MinInt64, math.MaxInt64)
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
		case nil: // null becomes an empty string, as in a map
		case string:
			list[i] = item
		case int64, uint64:
			return nil, fmt.Errorf("%s must be a string, but is the number %d (0x%04x): put it in quotes", at, item,
				item)
		case map[string]any, []any:
			return nil, fmt.Errorf("%s is neither a string nor a list of strings", at)
		default:
			return nil, fmt.Errorf("%s %v is not a string: put it in quotes", at, item)
		}
	}
	return list, nil
}

// assignLabels decodes labelled blocks. Nomad has not checked them, because their type is "any". In JSON, value is a
// map from labels to bodies. In an agent's HCL1, value is a list of such maps, and each body is a list with one map.
func (o *option) assignLabels(path string, v reflect.Value, value any) (p Problems) {
	blocks := mapsOf(value)
	if len(blocks) == 0 {
		p.Addf("%s is not a block: write %s %q { … }", path, path, strings.ToUpper(o.label))
	}
	for _, labelled := range blocks {
		for _, label := range slices.Sorted(maps.Keys(labelled)) {
			written, key := mapsOf(labelled[label]), reflect.ValueOf(label)
			switch {
			case len(written) == 0:
				p.Addf("%s has no label: write %s %q { … }", path, path, strings.ToUpper(o.label))
			case v.MapIndex(key).IsValid() || len(written) > 1:
				p.Addf("%s %q is declared twice: give each its own %s", path, label, o.label)
			default:
				body := reflect.New(o.typ.Elem()).Elem()
				p = append(p, o.assignLabelled(fmt.Sprintf("%s %q: ", path, label), body, written[0])...)
				v.SetMapIndex(key, body)
			}
		}
	}
	return p
}

// assignLabelled decodes one labelled block. It checks the body with Nomad's code, so the messages
// are the same as for other blocks.
func (o *option) assignLabelled(path string, v reflect.Value, written map[string]any) (p Problems) {
	data, errs := Encode(specOf(o.nested), escape(written))
	for _, err := range errs {
		p.Addf("%s%w", path, err)
	}
	if len(p) > 0 {
		return p
	}
	var body map[string]any
	if err := base.MsgPackDecode(data, &body); err != nil {
		p.Addf("%sfailed to decode: %w", path, err)
		return p
	}
	return assign(path, v, o.nested, body)
}

// mapsOf returns value as a list of maps. It returns nil if value is neither a map nor a list of maps.
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

// escape escapes templates in all text of value. Nomad has already evaluated them once, and Encode would do so again.
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
