// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// unsuited are environments that could not be built although that of another interpreter could, such as when a package
// has no wheel for the newest Python yet. It is safe for concurrent use. It is lost with the process, which costs
// another attempt.
type unsuited struct {
	since sync.Map // a time.Time by the digest of a key
}

// at is when the build of an environment failed, and zero if that is unknown.
func (u *unsuited) at(key string) time.Time {
	at, _ := u.since.Load(key)
	t, _ := at.(time.Time)
	return t
}

// attempts are those of one start of a task to get an environment, with one interpreter after the other.
type attempts struct {
	unsuited *unsuited
	again    time.Duration // after which an environment that could not be built is tried again, 0 is never
	anew     bool          // none is skipped

	keys    []string // of those that failed now
	skipped []string
	first   error // of the best interpreter that was tried
	others  []string
}

func (k key) digest() string { return digest([]byte(k.secret)) }

// skips reports whether an environment need not be tried.
func (a *attempts) skips(k key, last bool) bool {
	at := a.unsuited.at(k.digest())
	if last || a.anew || at.IsZero() || a.again > 0 && time.Since(at) > a.again {
		return false
	}
	a.skipped = append(a.skipped, k.digest())
	return true
}

// failed records an error, and reports whether the next interpreter is tried. It is not if the cause is known, since
// that does not depend on the interpreter. The exception is a temporary failure of an environment that failed before.
func (a *attempts) failed(k key, python interpreter.Interpreter, err error) bool {
	var e *install.Error
	if !errors.As(err, &e) {
		return false
	}
	if e.Cause != install.Unknown && (!e.Temporary() || a.unsuited.at(k.digest()).IsZero()) {
		return false
	}
	a.keys = append(a.keys, k.digest())
	if a.first == nil {
		a.first = err
	} else {
		a.others = append(a.others, full(python))
	}
	return true
}

// succeeded records what is skipped from now on.
func (a *attempts) succeeded() {
	for _, k := range a.keys {
		a.unsuited.since.Store(k, time.Now())
	}
}

// err is why there is no environment. The next start tries each again.
func (a *attempts) err() error {
	for _, k := range slices.Concat(a.keys, a.skipped) {
		a.unsuited.since.Delete(k)
	}
	if len(a.others) == 0 {
		return a.first
	}
	return fmt.Errorf("%w (and it can't be for %s either)", a.first, strings.Join(a.others, ", "))
}
