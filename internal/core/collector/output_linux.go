// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package collector

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// drainTime limits how long the remaining output can delay the end of a task if the disk is full, the file system
// hangs, or logmon is gone.
const drainTime = 2 * time.Second

// output is the output of one task. Its methods block while a file system hangs, unless their comments say otherwise.
type output struct {
	server *server

	mu    sync.Mutex // guards hangs and spec.ID; rename changes the ID
	spec  Spec
	hangs int // number of blocked threads

	watching sync.Once

	opened  chan struct{} // closed when the fields below are set: the FIFOs and files are open, or err says why not
	streams []*stream
	held    []*os.File    // FIFOs of Nomad's logmon
	from    task.LogPlace // where the stderr of a new task begins in the logs
	err     error
}

// stream is the stdout or the stderr of a task with CollectorDriver.
type stream struct {
	output *output
	label  string // "stdout " or "stderr ", the beginning of the stream's events
	device uint64 // number of the log directory's file system, 0 if the directory was not opened

	mu    sync.Mutex   // held by the loop while it pumps, and by the drain at the end of the task
	logs  *logs.Stream // nil when closed
	ended bool         // all output is in the files, and no writer is left
}

// locked calls the function do while holding the stream's lock. If the stream is closed, it does nothing.
func (str *stream) locked(do func()) {
	str.mu.Lock()
	defer str.mu.Unlock()
	if str.logs != nil {
		do()
	}
}

// mayHang calls the function do. If the call takes longer than stallTime, mayHang reports this to the supervisor; after
// hangTime, it also sends an event to the user of the task. label is the stream's label, or empty.
func (o *output) mayHang(label string, do func()) {
	var mu sync.Mutex
	over, stalled, reported := false, false, false
	report := func(as *bool, tell func()) func() {
		return func() {
			mu.Lock()
			defer mu.Unlock()
			if !over { // the timer may fire just as the call ends
				*as = true
				tell()
			}
		}
	}
	short := time.AfterFunc(stallTime, report(&stalled, func() { o.stalls(true) }))
	long := time.AfterFunc(hangTime, report(&reported, func() {
		o.events(label + "waits: the file system of the log directory does not respond")
	}))
	do()
	short.Stop()
	long.Stop()
	mu.Lock()
	defer mu.Unlock()
	over = true
	if reported {
		o.events(label + "resumed")
	}
	if stalled {
		o.stalls(false)
	}
}

func (str *stream) mayHang(do func()) { str.output.mayHang(str.label, do) }

// stalls counts the blocked threads of an output, and reports to the connected supervisor whether any is blocked. A
// supervisor that connects later gets this in the reply to opHello.
func (o *output) stalls(on bool) {
	o.mu.Lock()
	if on {
		o.hangs++
	} else {
		o.hangs--
	}
	r := &reply{Stall: &stall{ID: o.spec.ID, On: o.hangs > 0}}
	o.mu.Unlock()
	s := o.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		s.client.Event(r)
	}
}

// events sends events to the user of the task.
func (o *output) events(events ...string) {
	for _, e := range events {
		o.server.event(Event{ID: o.id(), Message: "Output: " + e})
	}
}

func (o *output) id() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.spec.ID
}

func (o *output) fifo(i int) string { return o.server.store.FIFO(o.id(), Streams[i]) }

func (o *output) rename(to string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.spec.ID = to
}

// open opens the FIFOs and log files. After an error, it leaves open what it has opened: a stream whose log file could
// not be created tries again later.
func (o *output) open(files []*os.File, isNew bool) (err error) {
	defer func() {
		o.err = err
		close(o.opened)
	}()
	if isNew {
		index, size := logs.End(o.spec.Output.AllocDir, o.spec.Task+".stderr")
		o.from = task.LogPlace{File: int(index), Offset: size}
	}
	if o.spec.Output.Collector == task.CollectorNomad {
		o.held, err = o.nomadFIFOs()
		return err
	}
	for i := range Streams {
		if err = errors.Join(err, o.openStream(i, files)); err != nil && isNew {
			break
		}
	}
	return err
}

// nomadFIFOs opens the FIFOs of Nomad's logmon. For other collectors it does nothing. It is called twice, for two sets
// of descriptors: the task gets one set, and the collector keeps the other until the task has ended, so output stays in
// the FIFOs while no logmon runs.
func (o *output) nomadFIFOs() (ends []*os.File, err error) {
	if o.spec.Output.Collector != task.CollectorNomad {
		return nil, nil
	}
	for _, path := range []string{o.spec.Output.Stdout, o.spec.Output.Stderr} {
		end, e := logs.OpenNomadFIFO(path, o.spec.UID, o.spec.GID)
		if err = errors.Join(err, e); e == nil {
			ends = append(ends, end)
		}
	}
	return ends, err
}

// openStream opens this process's end of a FIFO, and the log file.
func (o *output) openStream(i int, files []*os.File) (err error) {
	var fd int
	if i < len(files) {
		fd, err = unix.FcntlInt(files[i].Fd(), unix.F_DUPFD_CLOEXEC, 0)
	} else {
		fd, err = logs.OpenReadEnd(o.fifo(i))
		if errors.Is(err, fs.ErrNotExist) {
			fd, err = o.readEndOfTask(i, err)
		}
	}
	if err != nil {
		return err
	}
	l, err := logs.Open(fd, logs.Config{
		AllocDir: o.spec.Output.AllocDir, Name: o.spec.Task + "." + Streams[i],
		MaxFiles: o.spec.Output.MaxFiles, MaxFileSize: o.spec.Output.MaxFileSize,
	})
	if l == nil {
		unix.Close(fd)
		return err
	}
	o.streams = append(o.streams, &stream{output: o, label: Streams[i] + " ", logs: l, device: l.Device()})
	return err
}

// readEndOfTask opens a FIFO that was removed with the state directory, through the descriptor with which the task
// still writes to it. It returns notFound if that descriptor now refers to another file: the task could otherwise make
// this process read a file that the task may not read itself.
func (o *output) readEndOfTask(i int, notFound error) (int, error) {
	pidfd, err := o.spec.Identity.Open()
	if err != nil {
		return -1, notFound
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, i+1, 0)
	if err != nil {
		return -1, notFound
	}
	defer unix.Close(fd)
	if at, err := task.InodeOf(fd); err != nil || at != o.spec.Output.FIFOs[i] || at == (task.Inode{}) {
		return -1, notFound
	}
	return logs.OpenReadEnd(fmt.Sprintf("/proc/self/fd/%d", fd)) // a separate open file description
}

// watch hands the streams to the loop.
func (o *output) watch(l *loop) {
	<-o.opened
	o.watching.Do(func() {
		for _, str := range o.streams {
			str.locked(func() {
				if err := l.add(str); err != nil {
					o.events(str.label + "is not collected: " + err.Error())
				}
			})
		}
	})
}

// drain moves the remaining output of an ended task, so the last line is in the file before the exit is reported. It
// returns within drainTime, and returns false if not all output was moved.
func (o *output) drain() bool {
	return o.bounded(func() bool {
		all := true
		for _, str := range o.streams {
			str.mayHang(func() {
				str.locked(func() {
					r := str.logs.Drain(time.Now())
					o.events(r.Events...)
					all = all && r.Next == logs.Ended
				})
			})
		}
		for _, f := range o.held { // wait until logmon has read all output
			for end := time.Now().Add(drainTime); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				if n, err := logs.Queued(int(f.Fd())); err != nil || n == 0 {
					break
				}
			}
		}
		return all
	})
}

// close ends the collection and then calls the function done. If this takes longer than drainTime, close returns false
// and leaves the rest to a goroutine.
func (o *output) close(l *loop, done func()) bool {
	return o.bounded(func() bool {
		defer done()
		for _, str := range o.streams {
			str.mayHang(func() { str.locked(func() { str.close(l) }) })
		}
		for _, f := range o.held {
			f.Close()
		}
		return true
	})
}

func (str *stream) close(l *loop) {
	for end := time.Now().Add(drainTime); ; time.Sleep(50 * time.Millisecond) {
		r := str.logs.Drain(time.Now())
		str.output.events(r.Events...)
		if r.Next == logs.Ended || time.Now().After(end) {
			break
		}
	}
	l.remove(str)
	str.output.events(str.logs.Close()...)
	str.logs = nil
}

// bounded waits until the output has been opened, then calls the function do and returns its result. If this takes
// longer than drainTime, bounded returns false, and the call continues in the background.
func (o *output) bounded(do func() bool) bool {
	result := make(chan bool, 1)
	go func() {
		<-o.opened
		result <- do()
	}()
	timeout := time.NewTimer(drainTime + 100*time.Millisecond) // the call itself takes drainTime if the disk is full
	defer timeout.Stop()
	select {
	case all := <-result:
		return all
	case <-timeout.C:
		return false
	}
}

// atEnd reports whether all output was moved and no writer is left. It never blocks, and returns false for a blocked
// output.
func (o *output) atEnd() bool {
	select {
	case <-o.opened:
	default:
		return false
	}
	for _, str := range o.streams {
		if !str.mu.TryLock() {
			return false
		}
		over := str.logs == nil || str.ended
		str.mu.Unlock()
		if !over {
			return false
		}
	}
	return true
}

// removeFIFOs removes the FIFOs of an output that is at its end.
func (o *output) removeFIFOs() {
	for i := range Streams {
		_ = os.Remove(o.fifo(i))
	}
}
