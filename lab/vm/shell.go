package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/outrider-dev/outrider/lab/vm/wire"
)

// terminal is this process's, for a command of the VM to run on.
type terminal struct{ in, out *os.File }

// Shell runs a command on the terminal that this process has as stdin and stdout,
// until it ends. How it ended is not an error.
func (v *VM) Shell(ctx context.Context, c Cmd) error {
	fd := int(os.Stdin.Fd())
	old, err := term.MakeRaw(fd)
	if err != nil {
		return fmt.Errorf("failed to use the terminal: %w", err)
	}
	defer term.Restore(fd, old)
	c.Stdin, c.Stdout = os.Stdin, os.Stdout
	c.terminal = &terminal{os.Stdin, os.Stdout}
	err = v.Run(ctx, c)
	var exit *ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

func (t *terminal) size() *wire.Size {
	cols, rows, err := term.GetSize(int(t.out.Fd()))
	if err != nil || cols == 0 || rows == 0 {
		return &wire.Size{Rows: 24, Cols: 80}
	}
	return &wire.Size{Rows: uint16(min(rows, math.MaxUint16)), Cols: uint16(min(cols, math.MaxUint16))}
}

// follow tells the command of every new size, until stop is called.
func (t *terminal) follow(stream net.Conn) (stop func()) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	go func() {
		for range changed {
			if b, err := json.Marshal(t.size()); err == nil {
				wire.WriteFrame(stream, wire.Resized, b)
			}
		}
	}()
	return func() {
		signal.Stop(changed)
		close(changed)
	}
}
