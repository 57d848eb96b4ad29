package sysfs

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
	"unicode"
)

// attributes reads files of one directory of sysfs. err is the first failure of
// one that is always there.
type attributes struct {
	root fs.FS
	dir  string
	err  error
}

// text is empty where the device has no such attribute. It is made valid UTF-8
// without control characters, since a device may send anything, and gRPC and
// terminals don't take everything.
func (a *attributes) text(name string) string {
	b, _ := fs.ReadFile(a.root, path.Join(a.dir, name))
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b), "\uFFFD")))
}

// number must be there.
func (a *attributes) number(name string, base, bits int) uint64 {
	b, err := fs.ReadFile(a.root, path.Join(a.dir, name))
	if err == nil {
		var n uint64
		if n, err = strconv.ParseUint(strings.TrimSpace(string(b)), base, bits); err == nil {
			return n
		}
	}
	if a.err == nil {
		a.err = err
	}
	return 0
}

// optional is zero where it is missing.
func (a *attributes) optional(name string, base, bits int) uint64 {
	n, _ := strconv.ParseUint(a.text(name), base, bits)
	return n
}

func (a *attributes) class(prefix string) Class {
	return Class{
		Class:    uint8(a.optional(prefix+"Class", 16, 8)),
		Subclass: uint8(a.optional(prefix+"SubClass", 16, 8)),
		Protocol: uint8(a.optional(prefix+"Protocol", 16, 8)),
	}
}
