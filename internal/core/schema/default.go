// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"fmt"
	"reflect"
	"strconv"
)

// setDefaults fills a struct as decoding an empty configuration would.
func setDefaults(v reflect.Value, options []*option) {
	for _, o := range options {
		f := v.FieldByIndex(o.index)
		switch {
		case o.kind == kindBlock && !o.pointer:
			setDefaults(f, o.nested)
		case o.def == nil:
		case o.kind == kindList:
			items := splitList(*o.def)
			list := reflect.MakeSlice(o.typ, len(items), len(items))
			for i, item := range items {
				o.must(setScalar(list.Index(i), o.elem, item))
			}
			f.Set(list)
		default:
			o.must(setScalar(f, o.kind, *o.def))
		}
	}
}

func (o *option) must(err error) {
	if err != nil {
		panic(fmt.Sprintf("schema: default of %s: %v", o.name, err))
	}
}

func setScalar(v reflect.Value, k kind, text string) error {
	switch k {
	case kindBool:
		b, err := strconv.ParseBool(text)
		if err != nil || (text != "true" && text != "false") {
			return fmt.Errorf("%q is not true or false", text)
		}
		v.SetBool(b)
	case kindInt:
		if v.CanUint() {
			n, err := strconv.ParseUint(text, 10, v.Type().Bits())
			if err != nil {
				return err
			}
			v.SetUint(n)
			return nil
		}
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return err
		}
		v.SetInt(n)
	case kindFloat:
		n, err := strconv.ParseFloat(text, v.Type().Bits())
		if err != nil {
			return err
		}
		v.SetFloat(n)
	default:
		v.SetString(text)
	}
	return nil
}

// validateDefaults checks what the struct itself says: each default against its
// option's own rules, also in blocks that are not written by default.
func (s *Schema[T]) validateDefaults() error {
	t := s.Default()
	var p Problems
	check(&p, "", reflect.ValueOf(&t).Elem(), s.options, false)
	var deeper func(options []*option)
	deeper = func(options []*option) {
		for _, o := range options {
			if o.nested == nil {
				continue
			}
			body := o.typ
			if o.kind != kindBlock {
				body = body.Elem()
			}
			v := reflect.New(body).Elem()
			setDefaults(v, o.nested)
			check(&p, o.name+".", v, o.nested, false)
			deeper(o.nested)
		}
	}
	deeper(s.options)
	return p.orNil()
}
