// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package wire is the protocol between Outrider's own processes: JSON values on a unix stream
// socket, with file descriptors (SCM_RIGHTS, unix(7)).
//
// A Transport carries messages. A Client makes calls and reconnects when a connection is lost;
// Serve handles the calls. A peer must run as root or as this process's user.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MaxFDs is the maximum number of descriptors in one message.
const MaxFDs = 8

// errTruncated means that a received descriptor was lost: this process has too many open files (RLIMIT_NOFILE).
var errTruncated = errors.New("failed to receive a file descriptor: too many files are open")

// Message is a request, a reply with the request's Seq, or an event with Seq 0.
type Message[T any] struct {
	Seq   uint64     `json:"seq,omitempty"`
	FDs   int        `json:"fds,omitempty"` // the number of descriptors
	Body  T          `json:"body"`
	Files []*os.File `json:"-"` // the receiver closes them
}

func send[T any](t *Transport, m Message[T]) error {
	m.FDs = len(m.Files)
	return t.Send(m, m.Files...)
}

func receive[T any](t *Transport) (m Message[T], err error) {
	if err = t.Receive(&m); err == nil {
		m.Files = t.Take(m.FDs)
	}
	return m, err
}

// Transport frames messages on a unix stream socket and carries file descriptors. Only one goroutine may call Receive
// and Take; any number may call Send.
type Transport struct {
	*net.UnixConn
	dec *json.Decoder
	fds []int // received and not yet taken, in the order of their messages

	sendLock sync.Mutex
}

// New returns a transport over a socket. Closing the transport closes the socket.
func New(c *net.UnixConn) *Transport {
	w := &Transport{UnixConn: c}
	w.dec = json.NewDecoder(readerFunc(w.readFDs))
	return w
}

// FromFD returns a transport over the unix socket with this descriptor, and takes ownership of fd.
func FromFD(fd int) (*Transport, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("the descriptor is not a unix socket")
	}
	return New(u), nil
}

// Dial connects to a socket. It fails if the listening process runs neither as root nor as this user.
func Dial(path string) (*Transport, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	w := New(c)
	if err := w.OwnPeer(); err != nil {
		w.Shut()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return w, nil
}

// Send writes one message. The files, at most MaxFDs, are sent with the first byte of the message; the
// caller closes them.
func (t *Transport) Send(v any, files ...*os.File) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	t.sendLock.Lock()
	defer t.sendLock.Unlock()
	if len(files) == 0 {
		_, err = t.Write(b)
		return err
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	n, _, err := t.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	if err == nil && n < len(b) {
		_, err = t.Write(b[n:])
	}
	return err
}

// Receive reads one message into v. Do not use the connection after an error: the rest of a message
// could be mistaken for a new message, and a later message could get the wrong descriptors.
func (t *Transport) Receive(v any) error { return t.dec.Decode(v) }

// Take returns the next n received descriptors, or all of them if there are fewer; the caller closes them.
func (t *Transport) Take(n int) []*os.File {
	var files []*os.File
	for ; n > 0 && len(t.fds) > 0; n-- {
		files = append(files, os.NewFile(uintptr(t.fds[0]), "received"))
		t.fds = t.fds[1:]
	}
	return files
}

func (t *Transport) readFDs(p []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(MaxFDs*4))
	n, oobn, flags, _, err := t.ReadMsgUnix(p, oob)
	if oobn > 0 {
		if msgs, perr := unix.ParseSocketControlMessage(oob[:oobn]); perr == nil {
			for _, m := range msgs {
				if fds, perr := unix.ParseUnixRights(&m); perr == nil {
					for _, fd := range fds {
						syscall.CloseOnExec(fd)
						t.fds = append(t.fds, fd)
					}
				}
			}
		}
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		return 0, errTruncated
	}
	return max(n, 0), err // n is -1 for a connection that was reset
}

// Shut closes the connection and all received descriptors that were not taken. Only the receiving
// goroutine may call it.
func (t *Transport) Shut() {
	t.Close()
	CloseAll(t.Take(len(t.fds)))
}

// CloseAll closes files. Any of them may be nil.
func CloseAll(files []*os.File) {
	for _, f := range files {
		f.Close() // for nil it only returns an error
	}
}

// Accept calls serve with each connection until the listener is closed. It closes connections from
// processes that run neither as root nor as this user. This is a second barrier: other users
// cannot access the socket's directory either.
func Accept(l *net.UnixListener, serve func(*Transport)) {
	const first = 10 * time.Millisecond
	for wait := first; ; {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors or memory, temporarily
			time.Sleep(wait)
			wait = min(2*wait, time.Second)
			continue
		}
		wait = first
		w := New(c)
		if w.OwnPeer() != nil {
			w.Shut()
			continue
		}
		serve(w)
	}
}

// OwnPeer fails if the process that connected or listened runs neither as root nor as this user
// (SO_PEERCRED of unix(7)).
func (t *Transport) OwnPeer() error {
	cred, err := t.peer()
	if err != nil {
		return err
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("process %d at the other end of the socket runs as user %d, neither as root nor as this user",
			cred.Pid, cred.Uid)
	}
	return nil
}

func (t *Transport) peer() (cred *unix.Ucred, err error) {
	cerr := t.control(func(fd int) { cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(cerr, err)
}

func (t *Transport) control(do func(fd int)) error {
	raw, err := t.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { do(int(fd)) })
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
