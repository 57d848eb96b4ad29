// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// A host's clock may be set while tasks run: by how long they are without an owner they may be ended.
func TestRecord_HasAnAgeThatTheClockDoesNotMove(t *testing.T) {
	o := &stored{}
	o.change()
	time.Sleep(20 * time.Millisecond)
	for _, step := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		o.Since, o.Changed.Day = o.Since.Add(step), o.Changed.Day.Add(step)
		b, err := json.Marshal(o)
		must.NoError(t, err)
		read := &stored{}
		must.NoError(t, json.Unmarshal(b, read))
		test.Between(t, 20*time.Millisecond, read.public().Age, time.Hour)
	}
	o.Since = time.Now().Add(-time.Hour)
	test.Between(t, time.Hour, o.public().Age, 2*time.Hour, test.Sprint("an older shim has changed it since"))
}
