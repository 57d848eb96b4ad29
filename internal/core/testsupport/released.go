// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package testsupport

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
)

var recordFlag = flag.String("record", "", "record what this version writes in testdata/<value>, such as v0.1.0")

// EachRelease calls check with each folder of the package's testdata that contains the files and messages of a released
// version. With the flag -record=v0.2.0, record first fills the folder v0.2.0 from a real run, made for that release.
func EachRelease(t *testing.T, record, check func(t *testing.T, dir string)) {
	t.Helper()
	if *recordFlag != "" {
		dir := filepath.Join("testdata", *recordFlag)
		must.NoError(t, os.MkdirAll(dir, 0o755))
		must.True(t, t.Run("record", func(t *testing.T) { record(t, dir) }))
	}
	dirs, err := filepath.Glob("testdata/v*.*.*")
	must.NoError(t, err)
	must.SliceNotEmpty(t, dirs, must.Sprint("no release was recorded"))
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) { check(t, dir) })
	}
}

// KeepsJSON fails the test if decoded lacks any part of the JSON that a release wrote, because a field now has another
// name or type.
func KeepsJSON(t testing.TB, written []byte, decoded any) {
	t.Helper()
	now, err := json.Marshal(decoded)
	must.NoError(t, err)
	if lost := lostJSON("", parseJSON(t, written), parseJSON(t, now)); lost != "" {
		t.Errorf("%s\nwritten: %s\ndecoded: %s", lost, written, now)
	}
}

// LaterJSON returns JSON as a later version may write it: with an additional field in each object, except in the values
// of the keys in maps.
func LaterJSON(t testing.TB, written []byte, maps ...string) []byte {
	t.Helper()
	later, err := json.Marshal(withField(parseJSON(t, written), maps))
	must.NoError(t, err)
	return later
}

func parseJSON(t testing.TB, b []byte) (v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // an inode has more digits than a float64
	must.NoError(t, d.Decode(&v), must.Sprintf("%s", b))
	return v
}

func lostJSON(at string, written, now any) string {
	switch w := written.(type) {
	case map[string]any:
		n, _ := now.(map[string]any)
		for key, value := range w {
			there, ok := n[key]
			if !ok {
				return fmt.Sprintf("%s.%s is lost", at, key)
			}
			if lost := lostJSON(at+"."+key, value, there); lost != "" {
				return lost
			}
		}
		return ""
	case []any:
		n, _ := now.([]any)
		if len(n) != len(w) {
			return fmt.Sprintf("%s has %d elements, %d were written", at, len(n), len(w))
		}
		for i := range w {
			if lost := lostJSON(fmt.Sprintf("%s[%d]", at, i), w[i], n[i]); lost != "" {
				return lost
			}
		}
		return ""
	}
	if written != now {
		return fmt.Sprintf("%s is %v, and was %v", at, now, written)
	}
	return ""
}

func withField(v any, maps []string) any {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			if !slices.Contains(maps, key) {
				v[key] = withField(value, maps)
			}
		}
		v["a_field_of_a_later_version"] = map[string]any{"n": 1}
	case []any:
		for i := range v {
			v[i] = withField(v[i], maps)
		}
	}
	return v
}
