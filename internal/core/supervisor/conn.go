package supervisor

import (
	"encoding/json"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// conn frames messages on a unix stream socket and carries file descriptors.
// One goroutine may receive; any number may send.
type conn struct {
	*net.UnixConn
	dec *json.Decoder
	fds []int // received, not yet taken: in the order of the messages they came with

	sendLock sync.Mutex
}

func newConn(c *net.UnixConn) *conn {
	w := &conn{UnixConn: c}
	w.dec = json.NewDecoder(readerFunc(w.readFDs))
	return w
}

// send writes one message; the descriptors travel with its first byte.
func (c *conn) send(v any, fds ...int) error {
	b, err := encode(v)
	if err != nil {
		return err
	}
	c.sendLock.Lock()
	defer c.sendLock.Unlock()
	if len(fds) == 0 {
		_, err = c.Write(b)
		return err
	}
	n, _, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	if err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	return err
}

// receive reads one message into v.
func (c *conn) receive(v any) error { return c.dec.Decode(v) }

// take hands over n received descriptors; the caller closes them.
func (c *conn) take(n int) []*os.File {
	var files []*os.File
	for ; n > 0 && len(c.fds) > 0; n-- {
		files = append(files, os.NewFile(uintptr(c.fds[0]), "received"))
		c.fds = c.fds[1:]
	}
	return files
}

func (c *conn) readFDs(p []byte) (int, error) {
	oob := make([]byte, unix.CmsgSpace(8*4))
	n, oobn, _, _, err := c.ReadMsgUnix(p, oob)
	if oobn > 0 {
		if msgs, perr := unix.ParseSocketControlMessage(oob[:oobn]); perr == nil {
			for _, m := range msgs {
				if fds, perr := unix.ParseUnixRights(&m); perr == nil {
					for _, fd := range fds {
						syscall.CloseOnExec(fd)
						c.fds = append(c.fds, fd)
					}
				}
			}
		}
	}
	return max(n, 0), err // it is -1 with a connection that was reset
}

// shut closes the connection and whatever descriptors nobody took.
func (c *conn) shut() {
	c.Close()
	for _, f := range c.take(len(c.fds)) {
		f.Close()
	}
}

// peerUID is the user at the other end, SO_PEERCRED of unix(7).
func (c *conn) peerUID() (uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if cerr != nil {
		return 0, cerr
	}
	return cred.Uid, nil
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
