// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package example checks that the wheel in the example jobs matches its source.
package example

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/wheel"
)

var update = flag.Bool("update", false, "make the wheel from its source, and write it into the jobs")

const dist = "moonphase/dist"

func moonphase(t *testing.T) wheel.Wheel {
	source, err := os.ReadFile("moonphase/moonphase.py")
	must.NoError(t, err)
	return wheel.Wheel{
		Name: "moonphase", Version: "1.0", Python: ">=3.6",
		Files: map[string]string{"moonphase.py": string(source)},
	}
}

func TestExample_WheelMatchesItsSource(t *testing.T) {
	w := moonphase(t)
	if *update {
		must.NoError(t, w.Write(dist))
	}
	path := filepath.Join(dist, w.File())
	info, err := os.Stat(path)
	must.NoError(t, err)
	must.Less(t, 2048, info.Size(), must.Sprint("too large for a job"))
	zipped, err := zip.OpenReader(path)
	must.NoError(t, err)
	defer zipped.Close()
	have, err := fs.ReadFile(zipped, "moonphase.py") // compare only the content: the zip file depends on the release of Go
	must.NoError(t, err)
	must.Eq(t, w.Files["moonphase.py"], string(have),
		must.Sprint("the wheel differs from its source: go test ./plugins/python/example -update"))
}

// carried matches the wheel in a job's template, in base64: such a job needs no other file. locked matches the wheel's
// hash.
var (
	carried = regexp.MustCompile("(?s)(\\{\\{ base64Decode `\n).*?(` -\\}\\})")
	locked  = regexp.MustCompile(`(moonphase==1\.0 --hash=sha256:)[0-9a-f]*`)
)

func TestExample_JobsCarryTheWheel(t *testing.T) {
	wheel, err := os.ReadFile(filepath.Join(dist, moonphase(t).File()))
	must.NoError(t, err)
	jobs, err := filepath.Glob("*.nomad.hcl")
	must.NoError(t, err)
	wheels, hashes := 0, 0
	for _, path := range jobs {
		have, err := os.ReadFile(path)
		must.NoError(t, err)
		wheels += len(carried.FindAll(have, -1))
		hashes += len(locked.FindAll(have, -1))
		want := carried.ReplaceAll(have, []byte("${1}"+lines(wheel)+"${2}"))
		want = locked.ReplaceAll(want, fmt.Appendf(nil, "${1}%x", sha256.Sum256(wheel)))
		if bytes.Equal(have, want) {
			continue
		}
		if !*update {
			t.Errorf("the wheel or hash in %s does not match the source: go test ./plugins/python/example -update", path)
			continue
		}
		must.NoError(t, os.WriteFile(path, want, 0o644))
	}
	must.Eq(t, 2, wheels,
		must.Sprintf("found %d jobs that carry the wheel and %d that lock it: correct the expressions", wheels, hashes))
	test.Eq(t, 1, hashes,
		test.Sprintf("found %d jobs that carry the wheel and %d that lock it: correct the expressions", wheels, hashes))
}

// lines encodes the wheel in base64, with line breaks.
func lines(wheel []byte) string {
	const width = 100
	var b strings.Builder
	for text := base64.StdEncoding.EncodeToString(wheel); text != ""; {
		n := min(width, len(text))
		b.WriteString(text[:n] + "\n")
		text = text[n:]
	}
	return b.String()
}
