// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func TestPace_WaitsLongerForAQuietWriter(t *testing.T) {
	var p pace
	now := time.Now()
	// turn starts a wait, ends the wait with this number of queued bytes, and returns the length of the wait
	turn := func(queued int) time.Duration {
		at, later := p.later(now, 100)
		must.True(t, later, must.Sprint("does not wait"))
		again, later := p.later(at.Add(-1), 200)
		must.True(t, later, must.Sprintf("called early: %v, %v", again, later))
		test.EqOp(t, at, again, test.Sprintf("called early: %v, %v", again, later))
		waited := at.Sub(now)
		now = at
		_, later = p.later(now, queued)
		must.False(t, later, must.Sprint("waits again"))
		return waited
	}
	for range 10 {
		turn(200)
	}
	d := turn(enoughQueued)
	must.False(t, d < longestWait/2, must.Sprintf("the wait for a quiet writer is %v", d))
	test.False(t, d > 2*longestWait, test.Sprintf("the wait for a quiet writer is %v", d))
	d = turn(enoughQueued)
	test.False(t, d > 2*shortestWait, test.Sprintf("the wait for a busy writer is %v", d))
	_, later := p.later(now, enoughQueued)
	test.False(t, later, test.Sprint("waits with enough queued"))
}

func TestPace_WakesStreamsTogether(t *testing.T) {
	deadlines := map[time.Time]bool{}
	now := time.Now()
	for i := range 100 {
		p := pace{wait: longestWait}
		at, _ := p.later(now.Add(time.Duration(i)*longestWait/100), 1)
		deadlines[at] = true
	}
	test.False(t, len(deadlines) > 2, test.Sprintf("%d deadlines", len(deadlines)))
}

func TestStream_WidensThePipeOfABusyWriter(t *testing.T) {
	alloc, _ := allocDir(t)
	path := fifo(t)
	out, err := OpenTaskEnd(path)
	must.NoError(t, err)
	defer out.Close()
	fd, err := OpenReadEnd(path)
	must.NoError(t, err)
	s, err := Open(fd, Config{AllocDir: alloc, Name: "web.stdout"})
	must.NoError(t, err)
	defer s.Close()

	// turn writes n bytes, pumps them, and returns the resulting capacity of the pipe
	turn := func(n int) int {
		_, err := out.Write(make([]byte, n))
		must.NoError(t, err)
		test.EqOp(t, int64(n), s.Pump(time.Now()).N)
		size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
		must.NoError(t, err)
		return size
	}
	test.EqOp(t, 64<<10, turn(enoughQueued))
	must.EqOp(t, widePipe, turn(64<<10))
	test.EqOp(t, widePipe, turn(widePipe))
}

// BenchmarkPump reports the cost of moving output in this process (the writer is a separate process):
// CPU milliseconds per MB, pumps per MB, and MB per second.
func BenchmarkPump(b *testing.B) {
	for _, w := range []struct {
		name                string
		count, bytes, lines int
	}{
		{"bulk of 64 KiB", 8000, 64 << 10, 0},
		{"blocks of 4 KiB", 40_000, 4 << 10, 0},
		{"lines of 100 bytes", 1_000_000, 100, 0},
		{"lines of 100 bytes, 20000 per second", 40_000, 100, 20_000},
		{"lines of 100 bytes, 1000 per second", 2_000, 100, 1_000},
	} {
		for _, mode := range []string{"at once", "fixed wait", "adaptive wait"} {
			b.Run(fmt.Sprintf("%s/%s", w.name, mode), func(b *testing.B) {
				for range b.N {
					alloc, _ := allocDir(b)
					path := fifo(b)
					out, err := OpenTaskEnd(path)
					must.NoError(b, err)
					fd, err := OpenReadEnd(path)
					must.NoError(b, err)
					s, err := Open(fd, Config{AllocDir: alloc, Name: "web.stdout"})
					must.NoError(b, err)
					task := helper(b, "lines", fmt.Sprint(w.count), fmt.Sprint(w.bytes), fmt.Sprint(w.lines))
					task.Stdout = out
					must.NoError(b, task.Start())
					out.Close()
					before, start := cpu(b), time.Now()
					pumps := loop(b, s, mode)
					mb := float64(w.count*w.bytes) / 1e6
					b.ReportMetric(float64(cpu(b)-before)/1e6/mb, "cpu-ms/MB")
					b.ReportMetric(mb/time.Since(start).Seconds(), "MB/s")
					b.ReportMetric(float64(pumps)/mb, "pumps/MB")
					must.NoError(b, task.Wait())
					s.Close()
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// loop mirrors the collector's loop: one epoll instance, armed once for each Wait.
func loop(b *testing.B, s *Stream, mode string) (pumps int) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	must.NoError(b, err)
	defer unix.Close(ep)
	op := unix.EPOLL_CTL_ADD
	events := make([]unix.EpollEvent, 1)
	for {
		switch mode {
		case "at once":
			s.pace.due = epoch // the wait for more output is over
		case "fixed wait":
			s.pace.wait = shortestWait
		}
		r := s.Pump(time.Now())
		if r.N > 0 {
			pumps++
		}
		switch r.Next {
		case Ended:
			return pumps
		case Later:
			ts := unix.NsecToTimespec(int64(time.Until(r.At)))
			if ts.Nano() > 0 {
				unix.Nanosleep(&ts, nil)
			}
		case Wait:
			must.NoError(b, unix.EpollCtl(ep, op, s.FD(), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT,
				Fd: int32(s.FD())}))
			op = unix.EPOLL_CTL_MOD
			_, err := retry(func() (int, error) { return unix.EpollWait(ep, events, -1) })
			must.NoError(b, err)
		}
	}
}

func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	must.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
