// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// unsuited are environments that could not be built while that of another interpreter could: a package has no wheel for
// the newest Python yet. It is safe for concurrent use. It ends with the process, which costs another attempt.
type unsuited struct {
	mu   sync.Mutex
	keys map[string]time.Time // a digest of the key, and since when
}

// at is when an environment could not be built, and zero where that is not known.
func (u *unsuited) at(key string) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.keys[key]
}

// record is called when another environment could be built, or, with a zero time, could not either.
func (u *unsuited) record(keys []string, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, k := range keys {
		if at.IsZero() {
			delete(u.keys, k)
			continue
		}
		if u.keys == nil {
			u.keys = map[string]time.Time{}
		}
		u.keys[k] = at
	}
}

// attempts are those of one start to get an environment, with one interpreter after the other.
type attempts struct {
	unsuited *unsuited
	again    time.Duration // after which an environment that could not be built is tried again, 0 is never
	anew     bool          // each is tried

	keys    []string // of those that failed now
	skipped []string
	first   error // of the best interpreter that was tried
	others  []string
}

func (k key) digest() string { return digest([]byte(k.text + "\x00" + k.secret)) }

// skips reports whether an environment need not be tried.
func (a *attempts) skips(k key, last bool) bool {
	at := a.unsuited.at(k.digest())
	if last || a.anew || at.IsZero() || a.again > 0 && time.Since(at) > a.again {
		return false
	}
	a.skipped = append(a.skipped, k.digest())
	return true
}

// failed takes an error, and reports whether another interpreter may do better: not where the same may
// succeed later, unless it did not before, nor where something else than the installer's words tells why, nor where the
// requirements have hashes.
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
func (a *attempts) succeeded() { a.unsuited.record(a.keys, time.Now()) }

// err is why there is no environment. The next start tries each again.
func (a *attempts) err() error {
	a.unsuited.record(append(a.keys, a.skipped...), time.Time{})
	if len(a.others) == 0 {
		return a.first
	}
	return fmt.Errorf("%w (and it can't be for %s either)", a.first, strings.Join(a.others, ", "))
}
