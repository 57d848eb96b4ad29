package launch

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"syscall"
	"unsafe"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// The two halves are always the same binary, and a launcher lives for a
// millisecond, a third of which JSON would cost it. So a Spec goes to the
// launcher in its own form: numbers little-endian, strings by length and ended by
// a NUL, so that execve(2) gets pointers into the very bytes that were received.
//
// Back comes statusMounts with a descriptor of the mount namespace that was made for
// the program, if one was, which the supervisor answers by the same byte; statusExec
// just before execve; and statusError with an Error if there is one. The launcher's end
// is close-on-exec.
const (
	statusMounts = 'M'

	statusExec  = 'X'
	statusError = 'E'
)

// headerSize is the length of the rest of the message, which comes first.
const headerSize = 4

var errNUL = errors.New("command contains a NUL byte")

type encoder struct {
	b   []byte
	nul bool
}

func (e *encoder) num(v uint64) { e.b = binary.LittleEndian.AppendUint64(e.b, v) }

func (e *encoder) bool(v bool) {
	if v {
		e.num(1)
	} else {
		e.num(0)
	}
}

func (e *encoder) str(s string) {
	e.nul = e.nul || strings.IndexByte(s, 0) >= 0
	e.num(uint64(len(s)))
	e.b = append(append(e.b, s...), 0)
}

func (e *encoder) strs(s []string) {
	e.num(uint64(len(s)))
	for _, v := range s {
		e.str(v)
	}
}

// encodeSpec is the whole message with its header.
func encodeSpec(s *Spec) ([]byte, error) {
	size := 512
	for _, v := range s.Command.Env {
		size += len(v) + 9
	}
	for _, v := range s.Command.Args {
		size += len(v) + 9
	}
	e := &encoder{b: make([]byte, headerSize, size)}
	c := &s.Command
	e.str(c.Path)
	e.strs(c.Args)
	e.strs(c.Env)
	e.str(c.Dir)
	e.strs(c.Lookup)
	e.bool(c.User != nil)
	if c.User != nil {
		e.num(uint64(c.User.UID))
		e.num(uint64(c.User.GID))
		e.num(uint64(len(c.User.Groups)))
		for _, g := range c.User.Groups {
			e.num(uint64(g))
		}
	}
	e.bool(c.Umask != nil)
	if c.Umask != nil {
		e.num(uint64(*c.Umask))
	}
	e.num(uint64(c.Nice))
	e.num(uint64(c.OOMScoreAdj))
	e.num(uint64(len(c.Rlimits)))
	for _, r := range c.Rlimits {
		e.num(uint64(r.Resource))
		e.num(r.Soft)
		e.num(r.Hard)
	}
	e.str(c.NetworkNamespace)
	e.num(uint64(len(c.Devices)))
	for _, d := range c.Devices {
		e.str(d.HostPath)
		e.str(d.TaskPath)
	}
	e.num(uint64(len(c.Mounts)))
	for _, m := range c.Mounts {
		e.str(m.Source)
		e.str(m.Target)
		e.bool(m.ReadOnly)
	}
	e.num(uint64(s.MountNamespace))
	e.strs(s.TasksFiles)
	e.bool(s.Subreaper)
	e.bool(s.Session)
	e.bool(s.TTY)
	e.str(s.Record)
	if e.nul {
		return nil, errNUL
	}
	if len(e.b) > math.MaxInt32 {
		return nil, syscall.E2BIG
	}
	binary.LittleEndian.PutUint32(e.b, uint32(len(e.b)-headerSize))
	return e.b, nil
}

// decoder reads what encoder wrote; bad sticks.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) num() uint64 {
	if len(d.b) < 8 {
		d.bad, d.b = true, nil
		return 0
	}
	v := binary.LittleEndian.Uint64(d.b)
	d.b = d.b[8:]
	return v
}

func (d *decoder) bool() bool { return d.num() != 0 }

// str returns a string that shares the decoder's bytes and has a NUL behind it.
func (d *decoder) str() string {
	n := d.num()
	if n >= uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return ""
	}
	s := unsafe.String(unsafe.SliceData(d.b), int(n))
	d.b = d.b[n+1:]
	return s
}

func (d *decoder) count() int {
	n := d.num()
	if n > uint64(len(d.b))/8 { // nothing counted takes less
		d.bad, d.b = true, nil
		return 0
	}
	return int(n)
}

func (d *decoder) strs() []string {
	n := d.count()
	if n == 0 {
		return nil
	}
	s := make([]string, n)
	for i := range s {
		s[i] = d.str()
	}
	return s
}

func (d *decoder) spec(s *Spec) bool {
	c := &s.Command
	c.Path = d.str()
	c.Args = d.strs()
	c.Env = d.strs()
	c.Dir = d.str()
	c.Lookup = d.strs()
	if d.bool() {
		c.User = &task.User{UID: uint32(d.num()), GID: uint32(d.num())}
		if n := d.count(); n > 0 {
			c.User.Groups = make([]uint32, n)
			for i := range c.User.Groups {
				c.User.Groups[i] = uint32(d.num())
			}
		}
	}
	if d.bool() {
		m := uint32(d.num())
		c.Umask = &m
	}
	c.Nice = int(int64(d.num()))
	c.OOMScoreAdj = int(int64(d.num()))
	if n := d.count(); n > 0 {
		c.Rlimits = make([]task.Rlimit, n)
		for i := range c.Rlimits {
			c.Rlimits[i] = task.Rlimit{Resource: int(d.num()), Soft: d.num(), Hard: d.num()}
		}
	}
	c.NetworkNamespace = d.str()
	if n := d.count(); n > 0 {
		c.Devices = make([]task.Device, n)
		for i := range c.Devices {
			c.Devices[i] = task.Device{HostPath: d.str(), TaskPath: d.str()}
		}
	}
	if n := d.count(); n > 0 {
		c.Mounts = make([]task.Mount, n)
		for i := range c.Mounts {
			c.Mounts[i] = task.Mount{Source: d.str(), Target: d.str(), ReadOnly: d.bool()}
		}
	}
	s.MountNamespace = int(int64(d.num()))
	s.TasksFiles = d.strs()
	s.Subreaper = d.bool()
	s.Session = d.bool()
	s.TTY = d.bool()
	s.Record = d.str()
	return !d.bad && len(d.b) == 0
}

func encodeError(err *Error) []byte {
	e := &encoder{b: []byte{statusError}}
	e.str(string(err.Stage))
	e.str(err.Message)
	e.num(uint64(err.Errno))
	e.bool(err.Temporary)
	return e.b
}

// decodeError takes what came back without statusExec; nil where it is no Error.
func decodeError(b []byte) *Error {
	if len(b) == 0 || b[0] != statusError {
		return nil
	}
	d := &decoder{b: b[1:]}
	err := &Error{Stage: Stage(d.str()), Message: d.str(), Errno: syscall.Errno(d.num()), Temporary: d.bool()}
	if d.bad {
		return nil
	}
	return err
}
