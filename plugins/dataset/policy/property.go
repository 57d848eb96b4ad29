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
func parameters(backend string) []string {
	all := []string{"compression", "uid", "gid", "mode", "clone_from", "snapshots"}
	if backend == "zfs" {
		all = append([]string{"recordsize"}, all...)
	}
	return all
}

var (
	zfsProperty      = regexp.MustCompile(`^[a-z][a-z0-9_.:-]{0,254}$`)
	recordsize       = regexp.MustCompile(`^(512|1K|2K|4K|8K|16K|32K|64K|128K|256K|512K|1M|2M|4M|8M|16M)$`)
	zfsCompression   = regexp.MustCompile(`^(on|off|lzjb|lz4|zle|gzip(-[1-9])?|zstd(-1?[1-9]|-10)?|zstd-fast(-[0-9]{1,4})?)$`)
	btrfsCompression = regexp.MustCompile(`^(none|zlib|lzo|zstd)$`)
)

// ownProperties are refused by the engine, or would undo what the plugin promises of a volume.
var ownProperties = append(slices.Clone(engine.Reserved), "reservation", "refreservation", "readonly")

// checkProperty checks one property of the file system.
func (c Class) checkProperty(name, value string) error {
	switch {
	case name == "compression" && c.Backend == "zfs":
		if !zfsCompression.MatchString(value) {
			return fmt.Errorf("compression %q is not known: use on, off, lz4, lzjb, zle, gzip, gzip-1 to gzip-9, zstd or "+
				"zstd-1 to zstd-19", value)
		}
	case name == "compression":
		if !btrfsCompression.MatchString(value) {
			return fmt.Errorf("compression %q is not known: use none, zlib, lzo or zstd", value)
		}
	case c.Backend != "zfs":
		return fmt.Errorf("%q is not a property of datasets on %s: use compression", name, c.Backend)
	case name == "recordsize":
		if !recordsize.MatchString(value) {
			return fmt.Errorf("recordsize %q is not a power of two from 512 to 16M: use for example \"16K\"", value)
		}
	case !zfsProperty.MatchString(name) || strings.HasPrefix(name, "outrider:"):
		return fmt.Errorf("%q is not the name of a property: use those of zfs, such as atime", name)
	case slices.Contains(ownProperties, name):
		return fmt.Errorf("%q is for the plugin alone to set: leave it out", name)
	case value == "" || strings.ContainsFunc(value, unprintable):
		return fmt.Errorf("%q has the value %q, which is empty or can't be printed", name, value)
	}
	return nil
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }
