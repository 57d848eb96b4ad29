// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Problems is a list of the mistakes in a configuration, with one message for each. Error returns all of them in a
// single line, because Nomad shows errors in tables.
type Problems []error

func (p Problems) Error() string {
	texts := make([]string, len(p))
	for i, err := range p {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap supports errors.Is and errors.As.
func (p Problems) Unwrap() []error { return p }

// OrNil returns p as an error, or nil if p is empty.
func (p Problems) OrNil() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// Addf appends a mistake with a formatted message.
func (p *Problems) Addf(format string, args ...any) { *p = append(*p, fmt.Errorf(format, args...)) }

// Add appends err. If err is or wraps Problems, Add appends each of them. Add ignores nil.
func (p *Problems) Add(err error) {
	var several Problems
	if errors.As(err, &several) {
		*p = append(*p, several...)
	} else if err != nil {
		*p = append(*p, err)
	}
}

// validator is implemented by a configuration, or a block in it, that has rules which tags cannot express, such as
// mutually exclusive options. Validate may return several mistakes as Problems.
type validator interface{ Validate() error }

// Validate returns Problems with every mistake, or nil. It checks the rules of the tags. It then calls the method
// Validate of the configuration and of each block, if they have one. If an outer and an embedded struct both have the
// method, only the outer one is called, and must check both structs.
func (s *Schema[T]) Validate(t *T) error {
	var p Problems
	check(&p, "", reflect.ValueOf(t).Elem(), s.options)
	return p.OrNil()
}

func check(p *Problems, path string, v reflect.Value, options []*option) {
	own := 0
	for _, o := range options {
		before := len(*p)
		o.check(p, path+o.name, v.FieldByIndex(o.index))
		if o.nested == nil {
			own += len(*p) - before
		}
	}
	// Validate is not called after a mistake in an option, because its rules would often report the same mistake again
	if own == 0 {
		callValidator(p, path, v)
	}
}

func callValidator(p *Problems, path string, v reflect.Value) {
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
			callValidator(p, path, v.Field(i))
		}
	}
}

func (o *option) check(p *Problems, path string, v reflect.Value) {
	if o.pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	switch o.kind {
	case kindBlock:
		check(p, path+".", v, o.nested)
	case kindBlocks:
		for i := range v.Len() {
			check(p, fmt.Sprintf("%s[%d].", path, i), v.Index(i), o.nested)
		}
	case kindLabels:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, key := range keys {
			body := reflect.New(o.typ.Elem()).Elem() // a copy, since a map's element is not addressable
			body.Set(v.MapIndex(key))
			check(p, fmt.Sprintf("%s %q: ", path, key), body, o.nested)
		}
	default:
		if err := o.validate(v); err != nil {
			p.Addf("%s %w", path, err)
		}
	}
}

// validate checks one value against the option's tags.
func (o *option) validate(v reflect.Value) error {
	var n int64
	shown := fmt.Sprint(v)
	switch o.kind {
	case kindInt:
		n = v.Int()
	case kindString, kindSize, kindDuration:
		text := v.String()
		shown = strconv.Quote(text)
		switch {
		case text == "" && o.required:
			return errors.New("is empty: it must be set")
		case text == "" && o.def == nil && !o.pointer:
			return nil // the option is not set
		case o.enum != nil && !slices.Contains(o.enum, text):
			return fmt.Errorf("%s is not known: use %s", shown, choice(o.enum))
		case o.kind == kindString:
			return nil
		}
		var err error
		if n, err = o.kind.number(text); err != nil {
			return err
		}
	default:
		return nil
	}
	switch {
	case o.min != nil && n < o.min.value:
		return fmt.Errorf("%s is too small: use %s", shown, o.span())
	case o.max != nil && n > o.max.value:
		return fmt.Errorf("%s is too large: use %s", shown, o.span())
	}
	return nil
}

// span returns the option's range as text.
func (o *option) span() string {
	switch {
	case o.max == nil:
		return o.quoted(o.min.text) + " or more"
	case o.min == nil:
		return o.quoted(o.max.text) + " or less"
	}
	return o.quoted(o.min.text) + " to " + o.quoted(o.max.text)
}

// choice returns a list of values as text, such as "a", "b" or "c".
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
