// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inventory

import (
	"os"
	"testing"

	"github.com/outrider-dev/outrider/internal/core/device"

	"github.com/outrider-dev/outrider/plugins/usb/config"
)

// usb is the plugin without its subcommands, such as list.
var usb = device.Plugin[config.Config]{Name: "usb", New: New}

const pluginName = "nomad-device-usb"

// roleVar makes the test binary act as the plugin: conformance.Manager starts it with roleVar set to "plugin".
const roleVar = "OUTRIDER_USB_TEST_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVar) == "plugin" {
		device.Main(usb)
		return
	}
	os.Exit(m.Run())
}
