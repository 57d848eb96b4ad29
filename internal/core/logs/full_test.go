// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// smallDisk returns an allocation's directory whose log directory is a file system of size bytes.
func smallDisk(t *testing.T, size int) (alloc, logs string) {
	t.Helper()
	alloc, logs = allocDir(t)
	if err := unix.Mount("tmpfs", logs, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d,mode=0777",
		size)); err != nil {
		t.Skipf("cannot mount a small file system, which takes CAP_SYS_ADMIN: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(logs, 0); err != nil { // not a lazy unmount, which would hide a leaked descriptor
			t.Errorf("failed to unmount: %v", err)
		}
	})
	return alloc, logs
}

// fill uses all free space except leave bytes. free releases the space.
func fill(t *testing.T, logs string, leave int) (free func()) {
	t.Helper()
	path := filepath.Join(logs, "filler")
	var st unix.Statfs_t
	must.NoError(t, unix.Statfs(logs, &st))
	must.NoError(t, os.WriteFile(path, make([]byte, int(st.Bfree)*int(st.Bsize)-leave), 0o644))
	return func() { must.NoError(t, os.Remove(path)) }
}

// openStream is like stream, but closes the stream before the file system is unmounted.
func openStream(t *testing.T, cfg Config) (*os.File, *Stream) {
	t.Helper()
	path := fifo(t)
	task, err := OpenTaskEnd(path)
	must.NoError(t, err)
	fd, err := OpenReadEnd(path)
	must.NoError(t, err)
	cfg.Name = "web.stdout"
	s, err := Open(fd, cfg)
	must.NoError(t, err)
	t.Cleanup(func() { task.Close(); s.Close() })
	return task, s
}

func TestStream_WaitsForAFullDisk(t *testing.T) {
	for _, splice := range []bool{true, false} {
		t.Run(fmt.Sprintf("splice %v", splice), func(t *testing.T) {
			alloc, logs := smallDisk(t, 256<<10)
			task, s := openStream(t, Config{AllocDir: alloc})
			s.noSplice = !splice
			free := fill(t, logs, 16<<10)
			data := text(50<<10, 100)
			_, err := task.Write(data)
			must.NoError(t, err)

			now := time.Now()
			r := s.Pump(now)
			must.Eq(t, Later, r.Next, must.Sprintf("%+v", r))
			must.True(t, r.At.Equal(now.Add(time.Second)), must.Sprintf("%+v", r))
			must.SliceEqOp(t, []string{"stdout waits: no space left on device"}, r.Events,
				must.Sprintf("%+v", r))
			test.Eq(t, 16<<10, r.N, test.Sprintf("%d bytes written, there was space for 16384", r.N))
			n, _ := Queued(s.FD())
			test.Eq(t, len(data)-16<<10, n, test.Sprintf("%d bytes queued", n))
			for i := range 9 { // the stream waits without further events
				now = now.Add(time.Second)
				r := s.Pump(now)
				must.Eq(t, Later, r.Next, must.Sprintf("after %d s: %+v", i+1, r))
				must.SliceEmpty(t, r.Events, must.Sprintf("after %d s: %+v", i+1, r))
				must.False(t, r.N > 0, must.Sprintf("after %d s: %+v", i+1, r))
			}
			free()
			now = now.Add(time.Second / 2)
			if r := s.Pump(now); r.Next != Later || r.N > 0 { // too early for a retry
				t.Errorf("%+v", r)
			}
			now = now.Add(time.Second / 2)
			r = s.Pump(now)
			must.Eq(t, Wait, r.Next, must.Sprintf("%+v", r))
			test.SliceEqOp(t, []string{"stdout resumed"}, r.Events, test.Sprintf("%+v", r))
			all, _ := concatenation(t, logs)
			equal(t, all, data)
		})
	}
}

func TestStream_DropsAndCountsOutputAfterTheGracePeriod(t *testing.T) {
	alloc, logs := smallDisk(t, 256<<10)
	task, s := openStream(t, Config{AllocDir: alloc})
	s.stall.grace = 5 * time.Second
	free := fill(t, logs, 4<<10)
	data := text(3<<20, 100)
	left := data
	write := func(n int) {
		_, err := task.Write(left[:n])
		must.NoError(t, err)
		left = left[n:]
	}
	now := time.Now()
	write(60 << 10)
	s.Pump(now)
	for range 4 {
		now = now.Add(time.Second)
		r := s.Pump(now)
		must.Eq(t, Later, r.Next, must.Sprintf("%+v", r))
		must.SliceEmpty(t, r.Events, must.Sprintf("%+v", r))
	}
	now = now.Add(time.Second)
	r := s.Pump(now)
	must.Eq(t, Wait, r.Next, must.Sprintf("%+v", r))
	must.SliceLen(t, 1, r.Events, must.Sprintf("%+v", r))
	must.StrContains(t, r.Events[0], "stdout is dropped: no space left on device",
		must.Sprintf("%+v", r))
	for range 30 { // the task runs for minutes and does not block
		now = now.Add(10 * time.Second)
		write(60 << 10)
		r := s.Pump(now)
		must.Eq(t, Wait, r.Next, must.Sprintf("%+v", r))
		must.SliceEmpty(t, r.Events, must.Sprintf("%+v", r))
	}
	free()
	write(40 << 10)
	now = now.Add(time.Second)
	r = s.Pump(now)
	dropped := 31*(60<<10) - 4<<10
	want := fmt.Sprintf("stdout resumed: dropped %d bytes", dropped)
	test.SliceEqOp(t, []string{want}, r.Events, test.Sprintf("%q, want %q", r.Events, want))
	all, _ := concatenation(t, logs)
	equal(t, all, slices.Concat(data[:4<<10], data[4<<10+dropped:][:40<<10]))
}

func TestStream_ReportsDroppedBytesAtTheEnd(t *testing.T) {
	alloc, logs := smallDisk(t, 256<<10)
	task, s := openStream(t, Config{AllocDir: alloc})
	fill(t, logs, 0)
	_, err := task.Write(make([]byte, 5000))
	must.NoError(t, err)
	now := time.Now()
	var events []string
	for range 20 {
		r := s.Drain(now)
		events = append(events, r.Events...)
		if r.Next == Ended {
			want := []string{
				"stdout waits: no space left on device",
				"stdout is dropped: no space left on device for 10s",
				"stdout ended: dropped 5000 bytes",
			}
			test.SliceEqOp(t, want, events)
			return
		}
		now = r.At
	}
	t.Errorf("no end: %q", events)
}

func TestStream_ReportsShortWaitsRarely(t *testing.T) {
	alloc, logs := smallDisk(t, 256<<10)
	task, s := openStream(t, Config{AllocDir: alloc})
	now := time.Now()
	var events []string
	for range 20 {
		free := fill(t, logs, 0)
		_, err := task.Write(bytes.Repeat([]byte("x"), 5000))
		must.NoError(t, err)
		events = append(events, s.Drain(now).Events...)
		free()
		now = now.Add(time.Second)
		events = append(events, s.Drain(now).Events...)
	}
	test.SliceEqOp(t, []string{"stdout waits: no space left on device", "stdout resumed"}, events)
	all, _ := concatenation(t, logs)
	test.SliceLen(t, 20*5000, all, test.Sprintf("%d bytes", len(all)))
}

func TestStream_RotationMakesRoomOnAFullDisk(t *testing.T) {
	alloc, logs := smallDisk(t, 64<<10)
	task, s := openStream(t, Config{AllocDir: alloc, MaxFiles: 2, MaxFileSize: 16 << 10})
	data := text(1<<20, 100)
	put(t, task, s, data) // no event: two files of 16 KiB fit
	all, _ := concatenation(t, logs)
	equal(t, all, data[len(data)-len(all):])
}

func TestStream_TaskSurvivesAFullDisk(t *testing.T) {
	alloc, logs := smallDisk(t, 128<<10)
	path := fifo(t)
	out, err := OpenTaskEnd(path)
	must.NoError(t, err)
	fd, err := OpenReadEnd(path)
	must.NoError(t, err)
	s, err := Open(fd, Config{AllocDir: alloc, Name: "web.stdout"})
	must.NoError(t, err)
	s.stall.grace = 300 * time.Millisecond
	defer s.Close()
	task := helper(t, "lines", "20000", "100", "0") // 2 MB
	task.Stdout = out
	must.NoError(t, task.Start())
	out.Close()
	events := append(pump(s), s.Drain(time.Now()).Events...)
	must.NoError(t, task.Wait())
	all, _ := concatenation(t, logs)
	must.SliceNotEmpty(t, events, must.Sprint("no event"))
	var dropped int
	_, err = fmt.Sscanf(events[len(events)-1], "stdout ended: dropped %d bytes", &dropped)
	must.NoError(t, err, must.Sprintf("%d bytes in files; %q", len(all), events))
	test.Eq(t, 20000*100, dropped+len(all), test.Sprintf("%d bytes in files; %q", len(all), events))
}
