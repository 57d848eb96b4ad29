// Command nomad-device-usb gives USB devices to tasks of Nomad, by name.
package main

import _ "github.com/outrider-dev/outrider/internal/core/device"

func main() {}
