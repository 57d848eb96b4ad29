// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Problems are the mistakes of a configuration, one sentence each. As an error
// they are one line, since Nomad shows them in tables.
type Problems []error

func (p Problems) Error() string {
	texts := make([]string, len(p))
	for i, err := range p {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap is for errors.Is and errors.As.
func (p Problems) Unwrap() []error { return p }

func (p Problems) orNil() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

func (p *Problems) addf(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

// validator is implemented by a configuration or a block of it for rules that tags cannot
// express, such as two options that exclude each other. It may return several mistakes as
// Problems.
type validator interface{ Validate() error }

// Validate returns Problems with every mistake, or nil. After the tags' rules it
// asks the configuration itself and each of its blocks, where they have a method
// Validate() error; that of an embedded struct is asked unless the struct around
// it has one, which then answers for both.
func (s *Schema[T]) Validate(t *T) error {
	var p Problems
	check(&p, "", reflect.ValueOf(t).Elem(), s.options, true)
	return p.orNil()
}

func check(p *Problems, path string, v reflect.Value, options []*option, ask bool) {
	own := 0
	for _, o := range options {
		before := len(*p)
		o.check(p, path+o.name, v.FieldByIndex(o.index), ask)
		if o.nested == nil {
			own += len(*p) - before
		}
	}
	// rules between options would only repeat what is wrong with one of them
	if ask && own == 0 {
		askItself(p, path, v)
	}
}

func askItself(p *Problems, path string, v reflect.Value) {
	if val, ok := v.Addr().Interface().(validator); ok {
		err := val.Validate()
		var all Problems
		if err != nil && !errors.As(err, &all) {
			all = Problems{err}
		}
		for _, err := range all {
			if path != "" {
				err = fmt.Errorf("%s: %w", strings.TrimRight(path, ".: "), err)
			}
			*p = append(*p, err)
		}
		return
	}
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.Anonymous && f.IsExported() && f.Type.Kind() == reflect.Struct &&
			f.Tag.Get("codec") == "" {
			askItself(p, path, v.Field(i))
		}
	}
}

func (o *option) check(p *Problems, path string, v reflect.Value, ask bool) {
	if o.pointer {
		if v.IsNil() {
			if o.required && ask {
				p.addf("%s is missing", path)
			}
			return
		}
		v = v.Elem()
	}
	switch o.kind {
	case kindBlock:
		check(p, path+".", v, o.nested, ask)
	case kindBlocks:
		o.checkCount(p, path, v, ask)
		for i := range v.Len() {
			check(p, fmt.Sprintf("%s[%d].", path, i), v.Index(i), o.nested, ask)
		}
	case kindLabels:
		o.checkCount(p, path, v, ask)
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			body := reflect.New(o.typ.Elem()).Elem() // a map's element cannot be addressed
			body.Set(v.MapIndex(key))
			check(p, fmt.Sprintf("%s %q: ", path, key), body, o.nested, ask)
		}
	case kindMap:
		o.checkCount(p, path, v, ask)
	case kindList:
		o.checkCount(p, path, v, ask)
		for i := range v.Len() {
			o.checkScalar(p, fmt.Sprintf("%s[%d]", path, i), o.elem, v.Index(i), true, ask)
		}
	default:
		if ask || o.def != nil {
			o.checkScalar(p, path, o.kind, v, o.def != nil || o.pointer, ask)
		}
	}
}

func (o *option) checkCount(p *Problems, path string, v reflect.Value, ask bool) {
	n := float64(v.Len())
	switch {
	case o.required && n == 0 && ask:
		p.addf("%s is empty: it needs at least one element", path)
	case n == 0 && o.def == nil && o.kind != kindBlocks && o.kind != kindLabels: // not written
	case ask && !o.within(n):
		p.addf("%s has %d elements: use %s", path, v.Len(), o.span())
	}
}

// checkScalar checks one value. written reports whether an empty string was written, and
// is not merely an option left out.
func (o *option) checkScalar(p *Problems, path string, k kind, v reflect.Value, written, ask bool) {
	var n float64
	shown := fmt.Sprint(v)
	switch k {
	case kindBool:
		return
	case kindInt:
		if v.CanUint() {
			n = float64(v.Uint())
		} else {
			n = float64(v.Int())
		}
	case kindFloat:
		n = v.Float()
	default:
		text := v.String()
		if text == "" && !written {
			if o.required && ask {
				p.addf("%s is empty: it must be set", path)
			}
			return
		}
		shown = strconv.Quote(text)
		if o.enum != nil && !slices.Contains(o.enum, text) {
			p.addf("%s %q is not known: use %s", path, text, choice(o.enum))
			return
		}
		var whole int64
		var err error
		switch k {
		case kindSize:
			whole, err = ParseSize(text)
		case kindDuration:
			whole, err = parseDuration(text)
		default:
			return
		}
		if err != nil {
			p.addf("%s %w", path, err)
			return
		}
		n = float64(whole)
	}
	if o.kind == kindList || o.within(n) { // of a list, min and max are its length
		return
	}
	size := "large"
	if o.min != nil && n < o.min.value {
		size = "small"
	}
	p.addf("%s %s is too %s: use %s", path, shown, size, o.span())
}

func (o *option) within(n float64) bool {
	return (o.min == nil || n >= o.min.value) && (o.max == nil || n <= o.max.value)
}

// span is the option's range in words.
func (o *option) span() string {
	show := func(b *bound) string {
		if o.kind == kindSize || o.kind == kindDuration {
			return strconv.Quote(b.text)
		}
		return b.text
	}
	switch {
	case o.max == nil:
		return show(o.min) + " or more"
	case o.min == nil:
		return show(o.max) + " or less"
	}
	return show(o.min) + " to " + show(o.max)
}

// choice is a list of values in words: "a", "b" or "c".
func choice(values []string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = strconv.Quote(v)
	}
	if len(quoted) == 1 {
		return quoted[0]
	}
	return strings.Join(quoted[:len(quoted)-1], ", ") + " or " + quoted[len(quoted)-1]
}

// misfits finds the numbers that HCL lets pass and the struct's type cannot
// hold: 1.5 or 2^70 for an int, -1 for a uint. raw is the configuration decoded
// without a type.
func misfits(path string, t reflect.Type, options []*option, raw map[string]any) (p Problems) {
	for _, o := range options {
		at := path + o.name
		switch value := raw[o.name].(type) {
		case map[string]any:
			if o.kind == kindBlock {
				p = append(p, misfits(at+".", o.typ, o.nested, value)...)
			}
			if o.kind == kindLabels {
				for label, body := range value {
					if body, ok := body.(map[string]any); ok {
						p = append(p, misfits(fmt.Sprintf("%s %q: ", at, label), o.typ.Elem(), o.nested, body)...)
					}
				}
			}
		case []any:
			for i, item := range value {
				at := fmt.Sprintf("%s[%d]", at, i)
				if body, ok := item.(map[string]any); ok {
					p = append(p, misfits(at+".", o.typ.Elem(), o.nested, body)...)
				} else if o.kind == kindList && o.elem == kindInt {
					p = append(p, misfit(at, o.typ.Elem(), item)...)
				}
			}
		default:
			if o.kind == kindInt && value != nil {
				p = append(p, misfit(at, o.typ, value)...)
			}
		}
	}
	return p
}

func misfit(path string, t reflect.Type, value any) (p Problems) {
	v := reflect.New(t).Elem()
	text := fmt.Sprint(value)
	if f, ok := value.(float64); ok {
		if f != math.Trunc(f) {
			p.addf("%s %v is not a whole number", path, value)
			return p
		}
		text = strconv.FormatFloat(f, 'f', -1, 64)
	}
	// cty sends what does not fit an int64 as text, which no integer decodes
	_, asText := value.(string)
	if setScalar(v, kindInt, text) == nil && !asText {
		return nil
	}
	bits := t.Bits()
	switch {
	case !v.CanUint():
		p.addf("%s %s is out of range: use %d to %d", path, text, int64(math.MinInt64)>>(64-bits),
			int64(math.MaxInt64)>>(64-bits))
	case strings.HasPrefix(text, "-"):
		p.addf("%s %s is negative: use 0 or more", path, text)
	default:
		p.addf("%s %s is too large: use 0 to %d", path, text, min(uint64(math.MaxUint64)>>(64-bits), math.MaxInt64))
	}
	return p
}
