// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package testsupport

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoenig/test/must"
)

var recordFlag = flag.String("record", "", "record what this version writes in testdata/<value>, such as v0.1.0")

// EachRelease calls check for each released version, with the folder in the package's testdata that contains files and
// messages of the version. With the flag -record=v0.2.0, it first calls record to fill the folder v0.2.0 from a real
// run.
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

// LaterJSON adds a field to each object in the JSON, as a later version might do. It leaves an object unchanged if its
// key is listed in maps, since the members of such an object are not fields.
func LaterJSON(t testing.TB, written []byte, maps ...string) []byte {
	t.Helper()
	var value any
	d := json.NewDecoder(bytes.NewReader(written))
	d.UseNumber() // a float64 cannot represent every inode number
	must.NoError(t, d.Decode(&value), must.Sprintf("%s", written))
	later, err := json.Marshal(withField(value, maps))
	must.NoError(t, err)
	return later
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
