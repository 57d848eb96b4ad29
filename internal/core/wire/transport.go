// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package wire is how Outrider's own processes talk to each other: JSON values on a
// unix stream socket, with file descriptors beside them (SCM_RIGHTS, unix(7)).
//
// A Transport carries messages. A Client makes calls, over a new connection when one is
// lost; Serve answers them. Either side of a connection is root's or this user's.
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

// MaxFDs is how many descriptors one message may carry.
const MaxFDs = 8

// errTruncated: this process has no number left for a descriptor that was sent.
var errTruncated = errors.New("a file descriptor that was sent could not be received: too many are open")

// Message is a request, the reply with its number, or an event, which has the number 0.
type Message[T any] struct {
	Seq   uint64     `json:"seq,omitempty"`
	FDs   int        `json:"fds,omitempty"` // how many descriptors belong to it
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

// Transport frames messages on a unix stream socket and carries file descriptors.
// One goroutine may Receive and Take; any number may Send.
type Transport struct {
	*net.UnixConn
	dec *json.Decoder
	fds []int // received, not yet taken: in the order of the messages they came with

	sendLock sync.Mutex
}

// New returns the transport over a socket, which it closes with itself.
func New(c *net.UnixConn) *Transport {
	w := &Transport{UnixConn: c}
	w.dec = json.NewDecoder(readerFunc(w.readFDs))
	return w
}

// FromFD returns the transport over the unix socket with this descriptor, which it takes over.
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
		return nil, errors.New("the descriptor is of no unix socket")
	}
	return New(u), nil
}

// Dial connects to a socket at whose other end is a process of root's or this user's.
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

// Send writes one message. The files, MaxFDs at most, travel with its first byte; the
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

// Receive reads one message into v. After an error the connection is of no more
// use: what follows could be taken for another message, or its descriptors for another's.
func (t *Transport) Receive(v any) error { return t.dec.Decode(v) }

// Take hands over n received descriptors; the caller closes them.
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
	return max(n, 0), err // it is -1 with a connection that was reset
}

// Shut closes the connection and all received descriptors that were not taken. It is for
// the goroutine that receives.
func (t *Transport) Shut() {
	t.Close()
	CloseAll(t.Take(len(t.fds)))
}

// CloseAll closes files, of which any may be nil.
func CloseAll(files []*os.File) {
	for _, f := range files {
		f.Close() // of nil it only returns an error
	}
}

// Accept calls serve with each connection to a process of root's or this user's, until
// the listener is closed. The socket's directory keeps others out already; this is the
// second lock.
func Accept(l *net.UnixListener, serve func(*Transport)) {
	const first = 10 * time.Millisecond
	for wait := first; ; {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptor or no memory is left, for now
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

// OwnPeer fails if the process that connected, or that listened, is neither root's nor
// this user's (SO_PEERCRED of unix(7)).
func (t *Transport) OwnPeer() error {
	cred, err := t.peer()
	if err != nil {
		return err
	}
	if cred.Uid != 0 && int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("process %d at the other end is user %d's", cred.Pid, cred.Uid)
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
