// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// parameters are what a volume may have besides class where its class allows it.
var parameters = []string{"recordsize", "compression", "uid", "gid", "mode", "clone_from"}

var (
	propertyName = regexp.MustCompile(`^[a-z][a-z0-9_.:-]{0,254}$`)
	recordsize   = regexp.MustCompile(`^(512|1K|2K|4K|8K|16K|32K|64K|128K|256K|512K|1M|2M|4M|8M|16M)$`)
	compression  = regexp.MustCompile(`^(on|off|lzjb|lz4|zle|gzip(-[1-9])?|zstd(-1?[1-9]|-10)?|zstd-fast(-[0-9]{1,4})?)$`)
)

// ownProperties are refused by the engine, or would undo what the plugin promises of a volume.
var ownProperties = append(slices.Clone(engine.Reserved), "reservation", "refreservation", "readonly")

// checkProperty checks one property of the file system.
func checkProperty(name, value string) error {
	switch {
	case name == "compression":
		if !compression.MatchString(value) {
			return fmt.Errorf("compression %q is not known: use on, off, lz4, lzjb, zle, gzip, gzip-1 to gzip-9, zstd or "+
				"zstd-1 to zstd-19", value)
		}
	case name == "recordsize":
		if !recordsize.MatchString(value) {
			return fmt.Errorf("recordsize %q is not a power of two from 512 to 16M: use for example \"16K\"", value)
		}
	case !propertyName.MatchString(name) || strings.HasPrefix(name, "outrider:"):
		return fmt.Errorf("%q is not the name of a property: use those of zfs, such as atime", name)
	case slices.Contains(ownProperties, name):
		return fmt.Errorf("%q is for the plugin alone to set: leave it out", name)
	case value == "" || strings.ContainsFunc(value, unprintable):
		return fmt.Errorf("%q has the value %q, which is empty or can't be printed", name, value)
	}
	return nil
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }
