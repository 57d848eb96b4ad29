// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"strings"
	"syscall"
	"unsafe"
)

// A Spec and an Error have a binary encoding, since JSON would take a third of the millisecond that a launcher lives.
// It needs no versions, because both ends are the same binary. All fields follow each other as they are declared: a
// number as 8 bytes little-endian, a pointer or a slice as the number of its elements and then the elements, a string
// as its length, its bytes and a NUL. Because of the NUL, execve(2) can get pointers into the received bytes.
//
// If the launcher has created a mount namespace, it sends statusMounts with a descriptor of the namespace, and waits
// until the supervisor returns the byte. Just before execve, it sends statusExec; execve closes its end of the socket.
// After an error, it sends statusError and the Error.
const (
	statusMounts = 'M'
	statusExec   = 'X'
	statusError  = 'E'
)

// headerSize is the size of the header, which contains the length of the rest of the message.
const headerSize = 4

var errNUL = errors.New("command contains a NUL byte")

// encoder appends values to b.
type encoder struct {
	b   []byte
	nul bool // a string contains a NUL, where execve(2) would cut it
}

func (e *encoder) num(v uint64) { e.b = binary.LittleEndian.AppendUint64(e.b, v) }

func (e *encoder) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			e.value(v.Field(i))
		}
	case reflect.Pointer:
		if v.IsNil() {
			e.num(0)
			return
		}
		e.num(1)
		e.value(v.Elem())
	case reflect.Slice:
		e.num(uint64(v.Len()))
		for i := range v.Len() {
			e.value(v.Index(i))
		}
	case reflect.String:
		s := v.String()
		e.nul = e.nul || strings.IndexByte(s, 0) >= 0
		e.num(uint64(len(s)))
		e.b = append(append(e.b, s...), 0)
	case reflect.Bool:
		n := uint64(0)
		if v.Bool() {
			n = 1
		}
		e.num(n)
	case reflect.Int:
		e.num(uint64(v.Int()))
	default:
		e.num(v.Uint()) // panics for a kind that has no encoding, which TestWire_CarriesEveryField detects
	}
}

// encodeSpec returns the whole message with its header.
func encodeSpec(s *Spec) ([]byte, error) {
	e := &encoder{b: make([]byte, headerSize, 4096)}
	e.value(reflect.ValueOf(s).Elem())
	if e.nul {
		return nil, errNUL
	}
	if len(e.b) > math.MaxInt32 {
		return nil, syscall.E2BIG
	}
	binary.LittleEndian.PutUint32(e.b, uint32(len(e.b)-headerSize))
	return e.b, nil
}

// decoder reads what encoder wrote. After an error it reads zeros.
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

// str returns a string that shares the decoder's bytes and is followed by a NUL.
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

// value decodes the next value into v, which must be zero.
func (d *decoder) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			d.value(v.Field(i))
		}
	case reflect.Pointer:
		if d.num() != 0 {
			v.Set(reflect.New(v.Type().Elem()))
			d.value(v.Elem())
		}
	case reflect.Slice:
		n := d.num()
		if n > uint64(len(d.b))/8 { // an element has at least 8 bytes
			d.bad, d.b = true, nil
			return
		}
		if n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), int(n), int(n)))
		}
		for i := range int(n) {
			d.value(v.Index(i))
		}
	case reflect.String:
		v.SetString(d.str())
	case reflect.Bool:
		v.SetBool(d.num() != 0)
	case reflect.Int:
		v.SetInt(int64(d.num()))
	default:
		v.SetUint(d.num())
	}
}

// decodeSpec decodes b into s. It returns false if b is not exactly one Spec.
func decodeSpec(b []byte, s *Spec) bool {
	d := &decoder{b: b}
	d.value(reflect.ValueOf(s).Elem())
	return !d.bad && len(d.b) == 0
}

func encodeError(err *Error) []byte {
	e := &encoder{b: []byte{statusError}}
	e.value(reflect.ValueOf(err).Elem())
	return e.b
}

// decodeError decodes a reply, without a leading statusExec. It returns nil if the reply is not an Error.
func decodeError(b []byte) *Error {
	if len(b) == 0 || b[0] != statusError {
		return nil
	}
	d, err := &decoder{b: b[1:]}, &Error{}
	d.value(reflect.ValueOf(err).Elem())
	if d.bad {
		return nil
	}
	return err
}
