// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"fmt"
	"reflect"
	"strconv"
)

// setDefaults gives a struct the values that it would get from an empty configuration.
func setDefaults(v reflect.Value, options []*option) {
	for _, o := range options {
		f := v.FieldByIndex(o.index)
		switch {
		case o.kind == kindBlock && !o.pointer:
			setDefaults(f, o.nested)
		case o.def != nil:
			_ = o.setDefault(f) // cannot fail: parse has tried this default
		}
	}
}

func (o *option) setDefault(v reflect.Value) error {
	text := *o.def
	switch o.kind {
	case kindBool:
		if text != "true" && text != "false" {
			return fmt.Errorf("%q is not true or false", text)
		}
		v.SetBool(text == "true")
	case kindInt:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return err
		}
		v.SetInt(n)
	default:
		v.SetString(text)
	}
	return nil
}
