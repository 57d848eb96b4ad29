// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/shim/protocol"
)

// serveLogs is endpoint.Endpoint's Logs.
func (s *Shim) serveLogs(w http.ResponseWriter, r *http.Request, q *protocol.Request) {
	if q.Stream != "stdout" && q.Stream != "stderr" {
		answer(w, protocol.Reply{}, fmt.Errorf("stream %q is neither stdout nor stderr", q.Stream))
		return
	}
	o, err := s.look(r.Context(), q.Ref.Name)
	if err != nil {
		answer(w, protocol.Reply{}, err)
		return
	}
	if q.From.File < 0 || q.From.Offset < 0 || q.Skip < 0 {
		answer(w, protocol.Reply{}, errors.New("a place is negative"))
		return
	}
	flush := http.NewResponseController(w).Flush
	w.WriteHeader(http.StatusOK)
	if flush() != nil {
		return
	}
	f := &follower{
		shim: s, id: o.Name, dir: filepath.Join(s.objectDir(o.Name), "alloc", "logs"), stream: o.Key.Task + "." + q.Stream,
		at: q.From, skip: q.Skip,
	}
	defer f.close()
	err = f.run(r.Context(), func(frame []byte, more bool) error {
		_, err := w.Write(frame)
		if err == nil && !more {
			err = flush()
		}
		return err
	})
	_ = protocol.WriteJSON(w, protocol.FrameEnd, protocol.End{Error: protocol.ToError(err)})
}

// follower reads the files of a stream, which the supervisor's collector writes and rotates.
type follower struct {
	shim   *Shim
	id     string // of the object
	dir    string
	stream string // "web.stdout"

	at   endpoint.Place
	skip int64 // bytes that are not sent
	gap  bool  // since the last chunk
	file *os.File
}

func (f *follower) close() {
	if f.file != nil {
		f.file.Close()
	}
}

// run sends the output until the object has ended and all is read. more is set if the next frame
// is there already.
func (f *follower) run(ctx context.Context, send func(frame []byte, more bool) error) error {
	output, stop := f.shim.notify.watch(f.dir)
	defer stop()
	record, stop := f.shim.notify.watch(f.shim.objectDir(f.id))
	defer stop()
	pause := firstPause
	var look time.Time // no look at the record before then: it is not cheap
	for over := false; ; {
		n, err := f.read(send)
		if err != nil {
			return err
		}
		if n > 0 {
			pause = firstPause
			if n >= protocol.MaxFrame { // fewer and larger frames cost less, here and there
				time.Sleep(gather)
			}
			continue
		}
		if over { // what was written before the end has been read after it
			return nil
		}
		if now := time.Now(); now.After(look) {
			look = now.Add(endEvery)
			if over, err = f.ended(ctx); err != nil {
				return err
			}
		}
		if over {
			continue
		}
		select {
		case <-output:
		case <-record:
			look = time.Time{}
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

const (
	firstPause = 10 * time.Millisecond // between two looks at the files, should the kernel not tell of a change
	gather     = 5 * time.Millisecond  // while much output comes
	endEvery   = 2 * time.Second       // between two looks at the record, which a change of it brings forward
)

func (f *follower) path(number int64) string {
	return filepath.Join(f.dir, f.stream+"."+strconv.FormatInt(number, 10))
}

// linked reports whether a file has a name.
func linked(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink > 0
}

// ended reports whether nothing writes any more.
func (f *follower) ended(ctx context.Context) (bool, error) {
	o, err := f.shim.look(ctx, f.id)
	if errors.Is(err, endpoint.ErrGone) || err == nil && o.State == endpoint.Exited {
		return true, nil
	}
	return false, err
}

// buffers are for those that read now: most followers wait.
var buffers = sync.Pool{New: func() any { return new([protocol.OutputSpace + protocol.MaxOutput]byte) }}

// read sends what is there, and returns how many bytes were.
func (f *follower) read(send func([]byte, bool) error) (read int64, err error) {
	buf := buffers.Get().(*[protocol.OutputSpace + protocol.MaxOutput]byte)
	defer buffers.Put(buf)
	for {
		if f.file == nil {
			if err := f.open(f.at.File); f.file == nil {
				return read, err
			}
		}
		n, err := f.file.ReadAt(buf[protocol.OutputSpace:], f.at.Offset)
		if n == 0 && errors.Is(err, io.EOF) {
			next, err := f.next()
			if err != nil || !next {
				return read, err
			}
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return read, err
		}
		read += int64(n)
		f.at.Offset += int64(n)
		skip := min(f.skip, int64(n))
		f.skip -= skip
		if skip == int64(n) && !f.gap {
			continue
		}
		frame := buf[skip : protocol.OutputSpace+n]
		protocol.FillOutput(frame, f.at, f.gap)
		if err := send(frame, n == protocol.MaxOutput); err != nil {
			return read, err
		}
		f.gap = false
	}
}

// open opens the file of this number, or the first one behind it, if there is any.
func (f *follower) open(number int64) error {
	for range 10 { // files are rotated away meanwhile
		known, err := logs.Indexes(f.dir, f.stream)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		i, found := slices.BinarySearch(known, number)
		if i == len(known) {
			return nil
		}
		if !found {
			// a place in a file that is gone
			f.gap = f.gap || known[i] > number
			f.at = endpoint.Place{File: known[i]}
		}
		path := f.path(known[i])
		file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		info, err := file.Stat()
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is no file", path)
		}
		if err != nil {
			file.Close()
			return err
		}
		f.file = file
		f.at.Offset = min(f.at.Offset, info.Size()) // a host that crashed has lost the end of a file
		return nil
	}
	return nil
}

// next goes on with the next file when this one is complete: there is a later one, and this one
// was read to its end since.
func (f *follower) next() (bool, error) {
	_, err := os.Lstat(f.path(f.at.File + 1))
	if info, serr := f.file.Stat(); serr == nil && errors.Is(err, fs.ErrNotExist) && linked(info) {
		return false, nil // a list of the directory would show no more
	}
	known, err := logs.Indexes(f.dir, f.stream)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if len(known) == 0 || known[len(known)-1] <= f.at.File {
		return false, nil
	}
	if info, err := f.file.Stat(); err != nil || info.Size() > f.at.Offset {
		return err == nil, err
	}
	f.file.Close()
	f.file = nil
	f.at = endpoint.Place{File: f.at.File + 1}
	return true, nil
}
