package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/lab/vm/wire"
)

// slice is the parent of the commands' cgroups, as systemd's would be.
const slice = "/sys/fs/cgroup/system.slice"

var runs atomic.Int64

// run runs a command and returns when the host knows how it ended. If the host
// closes the stream before, the command and all it has started are killed.
func run(stream net.Conn, r *wire.Run) error {
	e, err := command(stream, r)
	if err != nil {
		e = wire.Exit{Error: err.Error()}
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return wire.WriteFrame(stream, wire.Exited, b)
}

func command(stream net.Conn, r *wire.Run) (wire.Exit, error) {
	var none wire.Exit
	if len(r.Args) == 0 {
		return none, errors.New("no command given")
	}
	cmd := exec.Command(r.Args[0], r.Args[1:]...)
	var err error
	if cmd.Path, err = lookPath(r.Args[0], r.Env); err != nil {
		return none, err
	}
	if _, err := os.Stat(r.Dir); err != nil { // else it would be told of the program
		return none, err
	}
	cmd.Err = nil // of a look in this process's PATH
	cmd.Env, cmd.Dir = r.Env, r.Dir
	if cmd.Env == nil {
		cmd.Env = []string{} // not this process's
	}
	scope := filepath.Join(slice, fmt.Sprintf("run-%d.scope", runs.Add(1)))
	if err := os.Mkdir(scope, 0o755); err != nil {
		return none, err
	}
	defer os.Remove(scope) // in vain if something lives on in it
	fd, err := unix.Open(scope, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return none, err
	}
	defer unix.Close(fd)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd, Setsid: true}

	var in io.WriteCloser
	var terminal *os.File
	var outputs []*output
	if r.Terminal != nil {
		master, tty, err := pty.Open()
		if err != nil {
			return none, fmt.Errorf("failed to open a terminal: %w", err)
		}
		defer master.Close()
		defer tty.Close()
		resize(master, *r.Terminal)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		cmd.SysProcAttr.Setctty = true
		in, terminal = master, master
		outputs = append(outputs, newOutput(master, stream, wire.Stdout))
	} else {
		for kind, to := range map[wire.Kind]*io.Writer{wire.Stdout: &cmd.Stdout, wire.Stderr: &cmd.Stderr} {
			ours, theirs, err := os.Pipe()
			if err != nil {
				return none, err
			}
			defer ours.Close()
			defer theirs.Close()
			*to = theirs
			outputs = append(outputs, newOutput(ours, stream, kind))
		}
		if r.Stdin {
			if in, err = cmd.StdinPipe(); err != nil {
				return none, err
			}
		}
	}
	if err := cmd.Start(); err != nil {
		return none, err
	}
	// else the end of the output would not be seen
	cmd.Stdout.(*os.File).Close()
	cmd.Stderr.(*os.File).Close()
	for _, o := range outputs {
		go o.pass()
	}
	var ended atomic.Bool
	go func() { // ends with the stream
		if receive(stream, cmd.Process.Pid, in, terminal) != nil && !ended.Load() {
			os.WriteFile(filepath.Join(scope, "cgroup.kill"), []byte("1"), 0)
		}
	}()
	err = cmd.Wait()
	ended.Store(true) // what it has left running stays
	for _, o := range outputs {
		o.finish()
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return none, err
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return wire.Exit{Signal: int(ws.Signal())}, nil
	}
	return wire.Exit{Code: ws.ExitStatus()}, nil
}

// output is one output of a command, on its way to the host.
type output struct {
	from *os.File
	to   io.Writer
	done chan struct{}
}

func newOutput(from *os.File, stream io.Writer, kind wire.Kind) *output {
	return &output{from, wire.Writer{W: stream, Kind: kind}, make(chan struct{})}
}

// pass goes on until nobody has the other end open; of a terminal that is EIO.
func (o *output) pass() {
	defer close(o.done)
	io.Copy(o.to, o.from)
}

// finish returns when all is passed on that a command has written, now that it has
// ended: what it has left running may have its output open, and then an empty one is
// the end. The host may be slow to take what is there.
func (o *output) finish() {
	for range 600 { // a minute, if what it has left running writes all the time
		select {
		case <-o.done:
			return
		case <-time.After(100 * time.Millisecond):
		}
		if o.empty() {
			break
		}
	}
	o.from.Close()
	<-o.done
}

func (o *output) empty() bool {
	left := 0
	conn, err := o.from.SyscallConn()
	if err == nil {
		conn.Control(func(fd uintptr) { left, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return err != nil || left == 0
}

// receive passes on what the host sends, and returns an error when it sends no
// more. in may be nil.
func receive(stream net.Conn, pid int, in io.WriteCloser, terminal *os.File) error {
	frames := wire.Buffered(stream)
	for {
		kind, data, err := wire.ReadFrame(frames)
		if err != nil {
			return err
		}
		switch kind {
		case wire.Stdin:
			if in == nil {
				continue
			}
			if len(data) == 0 && terminal == nil {
				in.Close()
				in = nil
			} else if _, err := in.Write(data); err != nil {
				in = nil // it does not read any more
			}
		case wire.Resized:
			var s wire.Size
			if json.Unmarshal(data, &s) == nil && terminal != nil {
				resize(terminal, s)
			}
		case wire.Signaled:
			if n, err := strconv.Atoi(string(data)); err == nil {
				unix.Kill(-pid, unix.Signal(n))
			}
		}
	}
}

// resize is not pty.Setsize, whose Fd() makes the file blocking: its reader would not
// hear of a close.
func resize(terminal *os.File, s wire.Size) {
	if conn, err := terminal.SyscallConn(); err == nil {
		conn.Control(func(fd uintptr) {
			unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols})
		})
	}
}

// lookPath finds a program as execvp(3) does with the environment's PATH.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var dirs string
	for _, v := range env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			dirs = p
		}
	}
	for _, dir := range filepath.SplitList(dirs) {
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); err == nil && !st.IsDir() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("there is no program %s in %s", name, dirs)
}
