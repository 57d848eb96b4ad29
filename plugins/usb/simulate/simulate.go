// Package simulate plugs USB sticks into a directory that stands for /.
package simulate

import (
	"context"
	"io"

	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// Stick is what to plug in.
type Stick struct {
	ID                            sysfs.ID
	Manufacturer, Product, Serial string   // may be empty
	Port                          string   // the kernel's name for where: "1-1", "2-1.4"
	Functions                     []string // "tty", "hidraw": one interface and one node each
}

// Plugged is a stick that is plugged in.
type Plugged struct {
}

// Plug plugs the stick into dir, which is made where it is missing. Whoever calls
// it unplugs it.
func Plug(dir string, s Stick) (*Plugged, error) { panic("to come") }

// Serve answers every line that a task writes to the stick with "stick: " and the
// line, and writes it to out, until ctx ends.
func (p *Plugged) Serve(ctx context.Context, out io.Writer) error { panic("to come") }

// Unplug removes it. It is idempotent.
func (p *Plugged) Unplug() error { panic("to come") }

// Command is nomad-device-usb simulate.
func Command() plugin.Command { panic("to come") }
