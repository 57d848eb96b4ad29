// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package session

import (
	"math"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// A client may send any size. Without limits, 65537 rows would become 1, and -1 would become 65535.
func TestStreams_LimitTheWindowSize(t *testing.T) {
	term, err := openStreams(&drivers.ExecOptions{Tty: true})
	must.NoError(t, err)
	defer term.close()
	for _, c := range []struct {
		height, width int
		rows, columns uint16
	}{
		{24, 80, 24, 80}, {65535, 65535, 65535, 65535}, {65537, 65616, 65535, 65535},
		{math.MaxInt, 80, 65535, 80}, {-1, math.MinInt, 0, 0}, {40, 100, 40, 100},
	} {
		term.resize(drivers.TerminalSize{Height: c.height, Width: c.width})
		got, err := unix.IoctlGetWinsize(int(term.theirs[0].Fd()), unix.TIOCGWINSZ)
		must.NoError(t, err, must.Sprintf("%d x %d: got %+v", c.height, c.width, got))
		must.Eq(t, c.rows, got.Row, must.Sprintf("%d x %d: got %+v", c.height, c.width, got))
		test.Eq(t, c.columns, got.Col, test.Sprintf("%d x %d: got %+v", c.height, c.width, got))
	}
}
