// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package fingerprint

// Kicker requests probes from a Loop. A kick has no effect while the previous one still waits for the loop.
type Kicker chan struct{}

// NewKicker returns a Kicker, for the field Kick of a single Loop.
func NewKicker() Kicker { return make(Kicker, 1) }

// Kick requests a probe. It never blocks, and may be called from any goroutine.
func (k Kicker) Kick() {
	select {
	case k <- struct{}{}:
	default:
	}
}
