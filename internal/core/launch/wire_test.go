// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"io/fs"
	"reflect"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// fill sets every field below v to a value, so that a field that the encoding omits is detected.
func fill(v reflect.Value, n *uint64) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString("s" + string(rune('a'+*n%26)))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int:
		v.SetInt(-int64(*n))
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(*n)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		for i := range 3 {
			fill(v.Index(i), n)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	default:
		panic("no encoding for " + v.Kind().String())
	}
}

func TestWire_CarriesEveryField(t *testing.T) {
	var full Spec
	n := uint64(0)
	fill(reflect.ValueOf(&full).Elem(), &n)
	for name, want := range map[string]Spec{
		"everything": full,
		"nothing":    {},
		"empty user": {Command: task.Command{User: &task.User{}}},
		"empty args": {Command: task.Command{Args: []string{"", ""}}},
	} {
		b, err := encodeSpec(&want)
		must.NoError(t, err)
		var got Spec
		must.True(t, decodeSpec(b[headerSize:], &got), must.Sprint(name))
		test.Eq(t, want, got, test.Sprint(name))
		for cut := headerSize; cut < len(b); cut++ {
			must.False(t, decodeSpec(b[headerSize:cut], new(Spec)),
				must.Sprintf("%s: %d of %d bytes were accepted as the whole", name, cut, len(b)))
		}
	}
}

func TestWire_RefusesNUL(t *testing.T) {
	_, err := encodeSpec(&Spec{Command: task.Command{Args: []string{"a\x00b"}}})
	test.ErrorIs(t, err, errNUL)
}

func TestWire_CarriesErrors(t *testing.T) {
	want := &Error{Stage: StageExec, Message: "no \"such\" thing", Errno: syscall.ENOENT, Temporary: true}
	got := decodeError(encodeError(want))
	must.Eq(t, want, got)
	test.ErrorIs(t, got, fs.ErrNotExist)
	for _, b := range []string{"", "x", "E", "E\x01"} {
		test.Nil(t, decodeError([]byte(b)), test.Sprintf("%q became", b))
	}
}
