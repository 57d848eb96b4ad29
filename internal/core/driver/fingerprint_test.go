// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
)

func TestFingerprint_DistinguishesUndetectedFromUnhealthy(t *testing.T) {
	d := &Driver{name: "python"}
	for _, test := range []struct {
		err    error
		health drivers.HealthState
	}{
		{errors.New("a disk is full"), drivers.HealthStateUnhealthy},
		{Undetected("no Python"), drivers.HealthStateUndetected},
		{fmt.Errorf("on this node: %w", Undetected("no Python")), drivers.HealthStateUndetected},
	} {
		f := d.failed(test.err)
		if f.Health != test.health || f.HealthDescription != test.err.Error() || f.Attributes["driver.python"] != nil {
			t.Errorf("%v: got %+v", test.err, f)
		}
		if got := f.Attributes["driver.python.version"] != nil; got != (test.health == drivers.HealthStateUndetected) {
			t.Errorf("%v: the version is reported: %v", test.err, got)
		}
	}
}
