// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package testsupport

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

const fieldsFile = "fields.txt"

// RecordFields writes a list of all JSON fields that the values can have, with their types, to a release's folder. The
// recorded JSON does not show them all: it contains only the fields that were set.
func RecordFields(t testing.TB, dir string, values ...any) {
	t.Helper()
	text := strings.Join(jsonFields(values), "\n") + "\n"
	must.NoError(t, os.WriteFile(filepath.Join(dir, fieldsFile), []byte(text), 0o644))
}

// KeepsFields fails the test if a field that RecordFields has written is missing now or has another type.
func KeepsFields(t testing.TB, dir string, values ...any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, fieldsFile))
	must.NoError(t, err)
	now := jsonFields(values)
	for _, field := range strings.Fields(string(b)) {
		test.SliceContains(t, now, field, test.Sprint("a field that a release writes is no longer read"))
	}
}

func jsonFields(values []any) (fields []string) {
	listed := map[reflect.Type]bool{}
	for _, v := range values {
		typ := reflect.TypeOf(v)
		addFields(typ.Name(), typ, listed, func(line string) { fields = append(fields, line) })
		listed[typ] = true // in later values, a field of this type is listed without the type's own fields
	}
	return slices.Compact(slices.Sorted(slices.Values(fields)))
}

func addFields(at string, typ reflect.Type, listed map[reflect.Type]bool, add func(string)) {
	if listed[typ] {
		add(at + ":" + typ.Name())
		return
	}
	switch typ.Kind() {
	case reflect.Pointer:
		addFields(at, typ.Elem(), listed, add)
	case reflect.Slice, reflect.Array:
		addFields(at+"[]", typ.Elem(), listed, add)
	case reflect.Struct:
		known := false
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" && f.Anonymous {
				addFields(at, f.Type, listed, add)
			} else if name != "" && name != "-" {
				addFields(at+"."+name, f.Type, listed, add)
			}
			known = known || name != ""
		}
		if known {
			return
		}
		fallthrough // no JSON tags: a type with its own MarshalJSON, such as time.Time
	default:
		add(at + ":" + typ.Kind().String())
	}
}
