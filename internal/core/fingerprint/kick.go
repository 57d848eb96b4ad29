// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package fingerprint

// Kicker asks a loop for a probe. Kicks that come before the loop has taken the
// last one are one kick.
type Kicker chan struct{}

// NewKicker returns a Kicker, whose channel is a Loop's Kick.
func NewKicker() Kicker { return make(Kicker, 1) }

// Kick never blocks, and may be called from anywhere.
func (k Kicker) Kick() {
	select {
	case k <- struct{}{}:
	default:
	}
}
