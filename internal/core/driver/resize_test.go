package driver

import (
	"io"
	"math"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"golang.org/x/sys/unix"
)

// sizes are what a client says of its window, one after the other.
type sizes []*proto.ExecTaskStreamingRequest_TerminalSize

func (s *sizes) Recv() (*drivers.ExecTaskStreamingRequestMsg, error) {
	if len(*s) == 0 {
		return nil, io.EOF
	}
	size := (*s)[0]
	*s = (*s)[1:]
	return &drivers.ExecTaskStreamingRequestMsg{TtySize: size}, nil
}

func (*sizes) Send(*drivers.ExecTaskStreamingResponseMsg) error { return nil }

// 65537 rows would be one, and -1 would be 65535.
func TestAWindowSizeDoesNotWrap(t *testing.T) {
	term, err := openTerminal(true)
	if err != nil {
		t.Fatal(err)
	}
	defer term.close()
	for _, c := range []struct {
		height, width int32
		rows, columns uint16
	}{
		{24, 80, 24, 80}, {65535, 65535, 65535, 65535}, {65537, 65616, 65535, 65535},
		{math.MaxInt32, 80, 65535, 80}, {-1, math.MinInt32, 0, 0}, {40, 100, 40, 100},
	} {
		receive(&sizes{{Height: c.height, Width: c.width}}, term)
		got, err := unix.IoctlGetWinsize(int(term.theirs[0].Fd()), unix.TIOCGWINSZ)
		if err != nil || got.Row != c.rows || got.Col != c.columns {
			t.Errorf("%d x %d: got %+v, %v", c.height, c.width, got, err)
		}
	}
}
