package driver

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/creack/pty"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// errSessionLost: the supervisor was replaced while a command ran in a task;
// such commands end with the connection, the task does not.
var errSessionLost = errors.New("command was ended: the supervisor was restarted")

// ExecTask is part of drivers.DriverPlugin: it runs a command in the task and
// returns its combined output, at most drivers.CheckBufSize bytes of its end.
func (d *Driver) ExecTask(id string, cmd []string, timeout time.Duration) (*drivers.ExecTaskResult, error) {
	h, err := d.handle(id)
	if err != nil {
		return nil, err
	}
	in, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	s, err := d.startSession(h, cmd, false, [3]*os.File{in, w, w})
	w.Close()
	if err != nil {
		return nil, err
	}
	var out tail
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&out, r)
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case e, ok := <-s.ended:
		if !ok {
			return nil, errSessionLost
		}
		waitForOutput(d.ctx, read, r)
		r.Close()
		<-read
		return &drivers.ExecTaskResult{Stdout: out.buf.Bytes(), ExitResult: exitResult(e)}, nil
	case <-timer.C:
		s.kill()
		return nil, fmt.Errorf("command did not end within %v: %w", timeout, context.DeadlineExceeded)
	}
}

// waitForOutput waits until what a command has written is read, now that it has
// ended. What it left running in the background may hold the pipes for ever: then
// empty ones are the end. (Full ones may be read late, by a user whose line is slow,
// or on a busy machine.)
func waitForOutput(ctx context.Context, read <-chan struct{}, pipes ...*os.File) {
	for range 600 { // a minute, if what runs in the background writes all the time
		select {
		case <-read:
			return
		case <-ctx.Done(): // nobody wants it any more
			return
		case <-time.After(100 * time.Millisecond):
		}
		if !slices.ContainsFunc(pipes, func(p *os.File) bool { return p != nil && !empty(p) }) {
			return
		}
	}
}

func empty(pipe *os.File) bool {
	left := 0
	raw, err := pipe.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { left, err = logs.Queued(int(fd)) })
	}
	return err != nil || left == 0
}

// heartbeat is how often a client of a command gets an empty message, which it ignores
// (api/allocations_exec.go): Nomad notices that one is gone when it sends to it, and only then.
const heartbeat = 2 * time.Second

// ExecTaskStreamingRaw is drivers.ExecTaskStreamingRawDriver: `nomad alloc exec`.
// The command ends with ctx.
func (d *Driver) ExecTaskStreamingRaw(ctx context.Context, id string, cmd []string, tty bool, stream drivers.ExecTaskStream) error {
	h, err := d.handle(id)
	if err != nil {
		return err
	}
	t, err := openTerminal(tty)
	if err != nil {
		return err
	}
	defer t.close()
	s, err := d.startSession(h, cmd, tty, t.theirs)
	closeFiles(t.theirs[:])
	if err != nil {
		return err
	}
	out := &sender{stream: stream}
	var reading sync.WaitGroup
	reading.Go(func() { out.copy(t.stdout, stdoutMessage) })
	if t.stderr != nil {
		reading.Go(func() { out.copy(t.stderr, stderrMessage) })
	}
	go receive(stream, t) // ends with the stream, which the caller closes when we return

	read := make(chan struct{})
	go func() { reading.Wait(); close(read) }()
	e, err := s.wait(ctx, out)
	if err == nil || errors.Is(err, errSessionLost) {
		waitForOutput(ctx, read, t.stdout, t.stderr)
	}
	t.close()
	<-read
	if err != nil {
		return err
	}
	return out.send(&drivers.ExecTaskStreamingResponseMsg{
		Exited: true, Result: &proto.ExitResult{ExitCode: int32(exitResult(e).ExitCode)},
	})
}

// session is a command that runs in a task.
type session struct {
	ended <-chan *task.Exit
	kill  func()
}

// wait returns how the command ended. Without a client it is killed.
func (s *session) wait(ctx context.Context, client *sender) (*task.Exit, error) {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		select {
		case e, ok := <-s.ended:
			if !ok {
				return nil, errSessionLost
			}
			return e, nil
		case <-beat.C:
			if err := client.send(&drivers.ExecTaskStreamingResponseMsg{}); err != nil {
				s.kill()
				return nil, fmt.Errorf("command was ended: its client is gone: %w", err)
			}
		case <-ctx.Done():
			s.kill()
			return nil, ctx.Err()
		}
	}
}

func (d *Driver) startSession(h *handle, cmd []string, tty bool, stdio [3]*os.File) (*session, error) {
	if c, err := d.Capabilities(); err != nil || !c.Exec {
		return nil, fmt.Errorf("driver %s runs no commands in tasks", d.name)
	}
	if len(cmd) == 0 || cmd[0] == "" {
		return nil, errors.New("command is empty")
	}
	spec := &supervisor.ExecSpec{Session: "exec-" + rand.Text(), Path: cmd[0], Args: cmd[1:], TTY: tty}
	ended, err := h.executor.Exec(d.ctx, h.config.ID, spec, stdio)
	if errors.Is(err, supervisor.ErrEnded) {
		return nil, fmt.Errorf("task %q does not run any more", h.config.Name)
	}
	if err != nil {
		return nil, err
	}
	return &session{ended: ended, kill: func() { _ = h.executor.Kill(d.ctx, spec.Session) }}, nil
}

// terminal is the two sides of a command's standard streams.
type terminal struct {
	theirs                [3]*os.File
	stdin, stdout, stderr *os.File // ours; stderr is nil with a tty
	tty                   bool
}

func openTerminal(tty bool) (*terminal, error) {
	if tty {
		master, slave, err := pty.Open()
		if err != nil {
			return nil, fmt.Errorf("failed to open a terminal: %w", err)
		}
		return &terminal{theirs: [3]*os.File{slave, slave, slave}, stdin: master, stdout: master, tty: true}, nil
	}
	t := &terminal{}
	var err error
	open := func(r, w **os.File) {
		if err == nil {
			*r, *w, err = os.Pipe()
		}
	}
	open(&t.theirs[0], &t.stdin)
	open(&t.stdout, &t.theirs[1])
	open(&t.stderr, &t.theirs[2])
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *terminal) close() {
	closeFiles(t.theirs[:])
	closeFiles([]*os.File{t.stdin, t.stdout, t.stderr})
}

// resize is not pty.Setsize, whose Fd() makes the file blocking and may be asked
// of one that is being closed: its number could be another session's by then.
func (t *terminal) resize(rows, columns int32) {
	side := func(n int32) uint16 { return uint16(min(max(n, 0), math.MaxUint16)) } // a client says any number
	if raw, err := t.stdin.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: side(rows), Col: side(columns)})
		})
	}
}

// closeFiles closes each; twice is harmless.
func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// receive gives the user's input and window size to the command.
func receive(stream drivers.ExecTaskStream, t *terminal) {
	for {
		m, err := stream.Recv()
		if err != nil {
			return
		}
		if in := m.Stdin; in != nil {
			if len(in.Data) > 0 {
				if _, err := t.stdin.Write(in.Data); err != nil {
					continue // it does not read any more; its output is still wanted
				}
			}
			if in.Close {
				if t.tty {
					_, _ = t.stdin.Write([]byte{4}) // VEOF of termios(3): the master's close would hang up
				} else {
					t.stdin.Close()
				}
			}
		}
		if size := m.TtySize; size != nil && t.tty {
			t.resize(size.Height, size.Width)
		}
	}
}

// sender serialises what goes to a stream, which allows one sender at a time.
type sender struct {
	mu     sync.Mutex
	stream drivers.ExecTaskStream
}

func (s *sender) send(m *drivers.ExecTaskStreamingResponseMsg) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stream.Send(m)
}

// copy sends all that r has, and that it has ended: a terminal does with EIO.
func (s *sender) copy(r io.Reader, message func(*proto.ExecTaskStreamingIOOperation) *drivers.ExecTaskStreamingResponseMsg) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 && s.send(message(&proto.ExecTaskStreamingIOOperation{Data: buf[:n]})) != nil {
			return
		}
		if err != nil {
			_ = s.send(message(&proto.ExecTaskStreamingIOOperation{Close: true}))
			return
		}
	}
}

func stdoutMessage(op *proto.ExecTaskStreamingIOOperation) *drivers.ExecTaskStreamingResponseMsg {
	return &drivers.ExecTaskStreamingResponseMsg{Stdout: op}
}

func stderrMessage(op *proto.ExecTaskStreamingIOOperation) *drivers.ExecTaskStreamingResponseMsg {
	return &drivers.ExecTaskStreamingResponseMsg{Stderr: op}
}

// tail keeps the last drivers.CheckBufSize bytes. (It embeds no bytes.Buffer,
// whose ReadFrom would take everything.)
type tail struct{ buf bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	n, err := t.buf.Write(p)
	if over := t.buf.Len() - drivers.CheckBufSize; over > 0 {
		t.buf.Next(over)
	}
	return n, err
}
