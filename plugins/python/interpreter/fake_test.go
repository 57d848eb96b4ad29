// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package interpreter

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// says is a shell script that answers as an interpreter in /opt/fake would.
func says(version string, more map[string]any) string {
	a := map[string]any{
		"version": version, "prefix": "/opt/fake", "base_prefix": "/opt/fake", "implementation": "cpython",
		"full": version + " (main)", "abi": "cpython-" + version, "platform": "linux-x86_64", "libc": "glibc 2.36",
	}
	for k, v := range more {
		a[k] = v
	}
	line, err := json.Marshal(a)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("echo '%s'", line)
}

// fake makes an interpreter of a shell script. It is renamed into place, so that it is another file each time.
func fake(t testing.TB, path, script string) {
	t.Helper()
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.WriteFile(path+".new", []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	must.NoError(t, os.Rename(path+".new", path))
}

// search is Find, which must not fail.
func search(t testing.TB, f *Finder) Found {
	t.Helper()
	found, err := f.Find(t.Context())
	must.NoError(t, err)
	return found
}

func find(t testing.TB, f *Finder) []Interpreter {
	t.Helper()
	return search(t, f).Interpreters
}

// renew is Renew, which must not fail.
func renew(t testing.TB, f *Finder) []Interpreter {
	t.Helper()
	found, err := f.Renew(t.Context())
	must.NoError(t, err)
	return found.Interpreters
}

// paths are those of interpreters, with the directory taken away.
func paths(dir string, found []Interpreter) string {
	var all []string
	for _, i := range found {
		all = append(all, strings.TrimPrefix(i.Path, dir+"/")+"="+i.String())
	}
	return strings.Join(all, " ")
}

// mentions fails unless exactly one of the reasons has all the words.
func mentions(t testing.TB, reasons []string, words ...string) {
	t.Helper()
	count := 0
	for _, r := range reasons {
		all := !strings.Contains(r, "\n")
		for _, w := range words {
			all = all && strings.Contains(r, w)
		}
		if all {
			count++
		}
	}
	test.Eq(t, 1, count, test.Sprintf("%d of %q mention %q", count, reasons, words))
}

// choose is the best of Fitting.
func choose(found []Interpreter, path string, wanted Specifier) (Interpreter, error) {
	fitting, err := Fitting(found, path, wanted)
	return append(fitting, Interpreter{})[0], err
}
