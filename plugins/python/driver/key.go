// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// format changes with the way in which environments are built, so that older ones are not used.
const format = 3

// key is what an environment depends on.
type key struct{ text, secret string }

// environmentKey has everything in it that makes another environment. It is shown to
// the operator, so that what may have passwords in it is apart.
func environmentKey(python interpreter.Interpreter, i install.Installer, required *requirement.Set, src *sources,
	sdists bool) key {
	var t, secret strings.Builder
	line := func(name string, values ...any) {
		fmt.Fprintf(&t, "%s %s\n", name, strings.TrimSuffix(fmt.Sprintln(values...), "\n"))
	}
	line("python", python.Implementation, python.Version, python.Path, python.Real, python.File.Inode, python.File.Size,
		python.File.ModTime)
	line("build", fmt.Sprintf("%q", python.Full), python.ABI, python.Platform, python.Libc)
	line("installer", i.Tool(python), format)
	line("source-distributions", sdists)
	line("locked", required.Hashed, required.Complete)
	for _, l := range required.Lines {
		line("require", index.Redact(l))
	}
	for _, l := range required.Constraints {
		line("constrain", index.Redact(l))
	}
	if u := required.UVLock; u != nil {
		line("uv.lock", digest(u.Lock), digest(u.Project))
		for _, e := range u.Choice.Extras {
			line("extra", e)
		}
		for _, g := range u.Choice.Groups {
			line("group", g)
		}
	}
	for _, s := range src.describe(required.Hashed) {
		line("from", index.Redact(s))
		fmt.Fprintln(&secret, s)
	}
	for _, l := range slices.Concat(required.Lines, required.Constraints) {
		fmt.Fprintln(&secret, l)
	}
	return key{t.String(), secret.String()}
}
