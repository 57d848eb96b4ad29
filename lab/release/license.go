// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// license is under what a package may be used.
type license struct {
	ids   []string // SPDX identifiers, all of which hold
	texts []string // of the files that say so
}

// and is both.
func (l license) and(other license) license {
	return license{union(l.ids, other.ids), union(l.texts, other.texts)}
}

func union(a, b []string) []string {
	all := slices.Sorted(slices.Values(slices.Concat(a, b)))
	return slices.Compact(all)
}

// String is an SPDX expression.
func (l license) String() string {
	ids := slices.Clone(l.ids)
	for i, id := range ids {
		if len(ids) > 1 && strings.Contains(id, " OR ") {
			ids[i] = "(" + id + ")"
		}
	}
	return strings.Join(ids, " AND ")
}

var (
	licenseFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|copyright|notice|patents|unlicense)`)
	identifier  = regexp.MustCompile(`SPDX-License-Identifier:\s*([A-Za-z0-9.+ -]*[A-Za-z0-9.+])`)
)

// licenseOf is the licence of a package in a module. Every file about licences from the package's folder up to the
// module's counts for the text. The identifier is what the source files say, and otherwise that of the nearest folder
// with such a file: within Nomad it differs from package to package.
func licenseOf(module, dir string, sources []string) (license, error) {
	var l license
	for _, name := range sources {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return l, err
		}
		if id := identifier.FindSubmatch(text[:min(len(text), 1024)]); id != nil {
			l.ids = union(l.ids, []string{string(id[1])})
		}
	}
	for ; strings.HasPrefix(dir, module); dir = filepath.Dir(dir) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return l, err
		}
		var here license
		for _, e := range entries {
			if e.IsDir() || !licenseFile.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
				continue
			}
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				return l, err
			}
			here = here.and(license{identify(text), []string{string(text)}})
		}
		if len(l.ids) == 0 {
			l.ids = here.ids
		}
		l.texts = union(l.texts, here.texts)
	}
	switch {
	case len(l.texts) == 0:
		return l, errors.New("there is no licence")
	case len(l.ids) == 0:
		return l, fmt.Errorf("the licence is not known: %.80q", l.texts[0])
	}
	return l, nil
}

// identify returns the SPDX identifiers of the licences in a text. A notice or a grant of patents has none.
func identify(text []byte) []string {
	if id := identifier.FindSubmatch(text[:min(len(text), 1024)]); id != nil {
		return []string{string(id[1])}
	}
	// licensecheck knows open source licences alone
	if bytes.Contains(text, []byte("\nBusiness Source License 1.1\n")) {
		return []string{"BUSL-1.1"}
	}
	var ids []string
	for _, m := range licensecheck.Scan(text).Match {
		if !m.IsURL && !strings.HasPrefix(m.ID, "GooglePatents") {
			ids = union(ids, []string{m.ID})
		}
	}
	return ids
}
