// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"fmt"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/device"

	"github.com/outrider-dev/outrider/internal/core/conformance"
)

func TestServer_Conforms(t *testing.T) {
	r := &rig{t: t, dir: t.TempDir()}
	two := fileWorld{Groups: []Group{sticks("ea60", "a:1", "b:1"), ill(sticks("ea61", "c:1"), "there is no tty")}}
	r.set(two)
	conformance.Device{
		Plugin:   func(ctx context.Context, log hclog.Logger) device.DevicePlugin { return New(ctx, log, filePlugin) },
		Config:   fmt.Sprintf("dir = %q\ngrace = \"1m\"", r.dir),
		Unplug:   func() { r.set(fileWorld{Groups: []Group{sticks("ea60", "a:1")}}) },
		Plug:     func() { r.set(two) },
		Measures: true,
	}.Test(t)
}
