package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/lab/vm/wire"
)

const (
	portName = wire.Port
	usbBus   = "usb"
)

// Cmd is a command to run in the VM, as exec.Cmd is one to run here. The user is
// root.
type Cmd struct {
	Args []string // a program, looked for in the PATH of Env if it has no slash, and its arguments
	Env  []string // nil is this process's
	Dir  string   // empty is this process's, which the VM has, too

	Stdin          io.Reader // nil is /dev/null. Read until the command ends, in vain the last time.
	Stdout, Stderr io.Writer // nil discards

	terminal *terminal // where not nil, what the command runs on instead
}

// ExitError is how a command ended that did not exit with 0.
type ExitError struct {
	Code   int
	Signal syscall.Signal // that has killed it, or 0
}

func (e *ExitError) Error() string {
	if e.Signal != 0 {
		return fmt.Sprintf("killed by signal %d (%v)", e.Signal, e.Signal)
	}
	return fmt.Sprintf("exit status %d", e.Code)
}

// Run runs a command and waits for it. An *ExitError says how it ended if not with
// 0; any other error is the VM's, with the end of its console. When ctx ends, the
// command and all that it has started are killed; what it leaves running when it
// ends by itself lives on.
func (v *VM) Run(ctx context.Context, c Cmd) error {
	if len(c.Args) == 0 {
		return errors.New("no command given")
	}
	r := wire.Run{Args: c.Args, Env: c.Env, Dir: c.Dir, Stdin: c.Stdin != nil}
	if r.Env == nil {
		r.Env = environment()
	}
	if r.Dir == "" {
		var err error
		if r.Dir, err = os.Getwd(); err != nil {
			return err
		}
	}
	if c.terminal != nil {
		r.Terminal = c.terminal.size()
	}
	stream, err := v.open(wire.Request{Run: &r})
	if err != nil {
		return err
	}
	defer stream.Close()
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer stop()
	if c.terminal != nil {
		defer c.terminal.follow(stream)()
	}
	if c.Stdin != nil {
		go send(stream, c.Stdin)
	}
	e, err := receive(stream, c)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return v.machine.explain(fmt.Errorf("the VM has gone away while it ran %s: %w", c.Args[0], err))
	case e.Error != "":
		return fmt.Errorf("failed to run %s in the VM: %s", c.Args[0], e.Error)
	case e.Code != 0 || e.Signal != 0:
		return &ExitError{Code: e.Code, Signal: syscall.Signal(e.Signal)}
	}
	return nil
}

// Output runs a command and returns its output, both streams in one.
func (v *VM) Output(ctx context.Context, args ...string) (string, error) {
	var b bytes.Buffer
	err := v.Run(ctx, Cmd{Args: args, Stdout: &b, Stderr: &b})
	if err != nil {
		err = fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return b.String(), err
}

// send passes stdin on until its end or the stream's.
func send(stream net.Conn, stdin io.Reader) {
	if _, err := io.Copy(wire.Writer{W: stream, Kind: wire.Stdin}, stdin); err == nil {
		wire.WriteFrame(stream, wire.Stdin, nil)
	}
}

// receive writes a command's output where it belongs, until the command ends.
func receive(stream net.Conn, c Cmd) (wire.Exit, error) {
	var e wire.Exit
	frames := wire.Buffered(stream)
	for {
		kind, data, err := wire.ReadFrame(frames)
		if err != nil {
			return e, err
		}
		switch kind {
		case wire.Stdout:
			err = write(c.Stdout, data)
		case wire.Stderr:
			err = write(c.Stderr, data)
		case wire.Exited:
			return e, json.Unmarshal(data, &e)
		}
		if err != nil {
			return e, err
		}
	}
}

func write(w io.Writer, data []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(data)
	return err
}
