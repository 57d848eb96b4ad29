// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"debug/elf"
	"fmt"
	"slices"
	"strings"

	goversion "github.com/hashicorp/go-version"
)

// relations are those of a package to others.
type relations struct {
	Depends    []string `json:"depends,omitempty"`
	Recommends []string `json:"recommends,omitempty"`
	Suggests   []string `json:"suggests,omitempty"`
	Provides   []string `json:"provides,omitempty"`
	Conflicts  []string `json:"conflicts,omitempty"`
	Replaces   []string `json:"replaces,omitempty"`
}

// recommended are packages that a plugin can do without, but hardly does, by plugin and format. An interpreter that was
// not installed from a package serves python just as well.
var recommended = map[string]map[string][]string{
	"dataset": {
		"deb": {"zfsutils-linux"},
	},
	"python": {
		"deb": {"python3 (>= 3.8)", "python3-venv | python3-pip | uv"},
		"rpm": {"python3 >= 3.8", "python3-pip"},
	},
}

// required are packages that a plugin runs programs of, by plugin and format.
var required = map[string]map[string][]string{
	"remote": {
		"deb": {"openssh-client"},
		"rpm": {"openssh-clients"},
	},
}

// libusbVersion is the version of Debian's package since which libusb has all that the plugin calls.
const libusbVersion = "2:1.0.22"

// relations are what the package of a format declares.
func (a *artefact) relations(format string) (relations, error) {
	r := relations{
		Depends: slices.Clone(required[a.plugin.Name][format]), Recommends: recommended[a.plugin.Name][format],
	}
	libraries, err := libraries(a.path)
	if err != nil {
		return r, err
	}
	if format == "deb" {
		r.Suggests = []string{"nomad"}
	}
	for _, l := range libraries {
		switch {
		case format == "rpm" && l.version == "":
			r.Depends = append(r.Depends, l.name+"()(64bit)")
		case format == "rpm":
			r.Depends = append(r.Depends, fmt.Sprintf("%s(GLIBC_%s)(64bit)", l.name, l.version))
		case l.name == "libc.so.6":
			r.Depends = append(r.Depends, "libc6 (>= "+l.version+")")
		case l.name == "libusb-1.0.so.0":
			r.Depends = append(r.Depends, "libusb-1.0-0 (>= "+libusbVersion+")")
		default:
			return r, fmt.Errorf("no package is known for %s, which %s needs", l.name, a.plugin.Binary)
		}
	}
	if a.libusb {
		r.Provides, r.Conflicts = []string{a.plugin.Binary}, []string{a.plugin.Binary}
		if format == "deb" { // in an rpm it would mean that it is the successor
			r.Replaces = r.Conflicts
		}
	}
	return r, nil
}

// library is one that a program is linked with dynamically.
type library struct {
	name    string // libc.so.6
	version string // of glibc, since when it has all that the program calls; empty for others
}

// libraries are those that a program needs, none if it is static.
func libraries(path string) ([]library, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	var symbols []elf.ImportedSymbol
	if len(names) > 0 {
		if symbols, err = f.ImportedSymbols(); err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	var found []library
	for _, name := range names {
		l := library{name: name}
		for _, s := range symbols {
			if version, ok := strings.CutPrefix(s.Version, "GLIBC_"); ok && s.Library == name && later(version, l.version) {
				l.version = version
			}
		}
		found = append(found, l)
	}
	return found, nil
}

// later reports whether version a is later than b, which may be empty.
func later(a, b string) bool {
	x, err := goversion.NewVersion(a)
	if err != nil {
		return false
	}
	y, err := goversion.NewVersion(b)
	return err != nil || x.GreaterThan(y)
}
