// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package fingerprint

// Kicker requests probes from a loop. Kicks that arrive before the loop has received the last one
// count as one.
type Kicker chan struct{}

// NewKicker returns a Kicker, which is used as the Kick of a Loop.
func NewKicker() Kicker { return make(Kicker, 1) }

// Kick never blocks, and may be called from any goroutine.
func (k Kicker) Kick() {
	select {
	case k <- struct{}{}:
	default:
	}
}
