// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/lab/internal/term"
)

// lgpl is the licence of libusb, which is linked dynamically.
//
//go:embed LGPL-2.1.txt
var lgpl string

// notice lists whose code the binary has, with every licence's text once.
func (a *artefact) notice() ([]byte, error) {
	var b, texts strings.Builder
	number := map[string]int{}
	refer := func(all []string) string {
		var refs []string
		for _, text := range all {
			if number[text] == 0 {
				number[text] = len(number) + 1
				fmt.Fprintf(&texts, "\n%s\n[%d]\n\n%s\n", strings.Repeat("=", 80), number[text], strings.Trim(text, "\n"))
			}
			refs = append(refs, fmt.Sprintf("[%d]", number[text]))
		}
		return strings.Join(refs, " ")
	}
	fmt.Fprintf(&b, `%s %s for linux/%s, of Outrider
Copyright the Outrider authors

It is licensed under the Mozilla Public License 2.0: see LICENSE. Its source is commit
%s of %s

The binary also has code of the Go modules below, each under its own licence, whose text
follows under the number. "go mod download MODULE@VERSION" gets the source of one.

`, a.plugin.Binary, a.version(), a.arch, a.setting("vcs.revision"), Project)
	for _, m := range a.modules {
		fmt.Fprintf(&b, "%s %s\n    %s %s\n", m.Path, m.Version, m.licenses, refer(m.licenses.texts))
		if len(m.licenses.ids) > 1 {
			b.WriteString(m.mixture())
		}
	}
	std, err := goLicense(a.goroot)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b, "the standard library of %s\n    %s %s\n", a.info.GoVersion, std, refer(std.texts))
	if a.libusb {
		fmt.Fprintf(&b, `
It uses the library libusb (https://libusb.info), which is not in it: the system loads libusb-1.0.so.0,
which anybody may replace.
    LGPL-2.1-or-later %s
`, refer([]string{lgpl}))
	}
	return []byte(b.String() + texts.String()), nil
}

// mixture tells which packages of a module are under which licence.
func (m *linked) mixture() string {
	by := map[string][]string{}
	for pkg, l := range m.packages {
		name := strings.TrimPrefix(strings.TrimPrefix(pkg, m.Path), "/")
		if name == "" {
			name = "."
		}
		by[l.String()] = append(by[l.String()], name)
	}
	if len(by) == 1 {
		return ""
	}
	text := ""
	for _, id := range slices.Sorted(maps.Keys(by)) {
		line := fmt.Sprintf("    %s: %s", id, strings.Join(slices.Sorted(slices.Values(by[id])), ", "))
		text += term.Wrap(line, 100, "      ") + "\n"
	}
	return text
}

// goLicense is that of the standard library and the runtime.
func goLicense(goroot string) (license, error) {
	var texts []string
	for _, name := range []string{"LICENSE", "PATENTS"} {
		text, err := os.ReadFile(filepath.Join(goroot, name))
		if err != nil {
			return license{}, fmt.Errorf("failed to read Go's licence: %w", err)
		}
		texts = append(texts, string(text))
	}
	return license{identify([]byte(texts[0])), texts}, nil
}
