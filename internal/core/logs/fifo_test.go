// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestMakeFIFO_ReplacesAnOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stdout")
	victim := filepath.Join(t.TempDir(), "victim")
	must.NoError(t, os.WriteFile(victim, nil, 0o644))
	for _, leave := range []func() error{
		func() error { return nil },
		func() error { return os.WriteFile(path, []byte("old"), 0o666) },
		func() error { return os.Symlink(victim, path) },
		func() error { return unix.Mkfifo(path, 0o666) },
	} {
		os.Remove(path)
		must.NoError(t, leave())
		must.NoError(t, MakeFIFO(path, os.Getuid(), os.Getgid()))
		fi, err := os.Lstat(path)
		must.NoError(t, err)
		test.Eq(t, os.ModeNamedPipe|0o600, fi.Mode(), test.Sprint("mode"))
	}
	_, err := os.Lstat(victim)
	test.NoError(t, err)
	test.Error(t, MakeFIFO(filepath.Dir(path), -1, -1), test.Sprint("a directory was replaced"))
}

func TestMakeFIFO_LetsTheTasksUserReopenIt(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to run a process as another user")
	}
	alloc, logs := allocDir(t)
	_, s := stream(t, Config{AllocDir: alloc})
	path := fifo(t) // in a directory with mode 0700, like the supervisor's directory
	must.NoError(t, MakeFIFO(path, 65534, 65534))
	must.NoError(t, os.Chmod(filepath.Dir(path), 0o700))
	out, err := OpenTaskEnd(path)
	must.NoError(t, err)
	defer out.Close()
	fd, err := OpenReadEnd(path)
	must.NoError(t, err)
	unix.Close(s.fifo)
	s.fifo = fd
	cmd := exec.Command("/bin/sh", "-c", "echo one; echo two > /dev/stdout; echo three >> /proc/self/fd/1")
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	must.NoError(t, cmd.Run())
	s.Drain(time.Now())
	all, _ := concatenation(t, logs)
	equal(t, all, []byte("one\ntwo\nthree\n"))
}

func TestFIFO_OnlyTheTasksSideIsBlocking(t *testing.T) {
	path := fifo(t)
	task, err := OpenTaskEnd(path)
	must.NoError(t, err)
	defer task.Close()
	read, err := OpenReadEnd(path)
	must.NoError(t, err)
	defer unix.Close(read)
	for fd, want := range map[int]bool{int(task.Fd()): false, read: true} {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		must.NoError(t, err)
		test.Eq(t, want, flags&unix.O_NONBLOCK != 0, test.Sprint("non-blocking"))
		flags, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		must.NoError(t, err)
		test.NotEq(t, 0, flags&unix.FD_CLOEXEC, test.Sprint("close-on-exec"))
	}
}

func TestStream_EndsWithItsLastWriter(t *testing.T) {
	alloc, logs := allocDir(t)
	path := fifo(t)
	fd, err := OpenReadEnd(path)
	must.NoError(t, err)
	s, err := Open(fd, Config{AllocDir: alloc, Name: "web.stdout"})
	must.NoError(t, err)
	defer s.Close()
	r := s.Pump(time.Now())
	test.Eq(t, Wait, r.Next, test.Sprintf("before the first writer: %+v", r))
	task, err := OpenTaskEnd(path)
	must.NoError(t, err)
	r = s.Pump(time.Now())
	test.Eq(t, Wait, r.Next, test.Sprintf("with a silent writer: %+v", r))
	task.WriteString("last words")
	task.Close()
	r = s.Pump(time.Now())
	test.Eq(t, Later, r.Next, test.Sprintf("with output: %+v", r))
	r = s.Pump(time.Now().Add(time.Second))
	must.Eq(t, Wait, r.Next, must.Sprintf("after the wait: %+v", r))
	test.Eq(t, 10, r.N, test.Sprintf("after the wait: %+v", r))
	r = s.Pump(time.Now())
	test.Eq(t, Ended, r.Next, test.Sprintf("at the end: %+v", r))
	all, _ := concatenation(t, logs)
	equal(t, all, []byte("last words"))
}

func TestDrain_EmptiesAFIFOThatOtherProcessesHoldOpen(t *testing.T) {
	alloc, logs := allocDir(t)
	task, s := stream(t, Config{AllocDir: alloc, MaxFileSize: 1000, MaxFiles: 1000})
	if _, err := unix.FcntlInt(task.Fd(), unix.F_SETPIPE_SZ, 1<<20); err != nil {
		t.Fatal(err)
	}
	data := text(900<<10, 100)
	_, err := task.Write(data)
	must.NoError(t, err)
	r := s.Drain(time.Now())
	must.Eq(t, Ended, r.Next, must.Sprintf("%+v", r))
	test.Eq(t, int64(len(data)), r.N, test.Sprintf("%+v", r))
	all, _ := concatenation(t, logs)
	equal(t, all, data)
}

// nomadFIFO makes a FIFO as logmon does, in a directory that all users can write to.
func nomadFIFO(t *testing.T) string {
	_, logs := allocDir(t)
	path := filepath.Join(logs, ".web.stdout.fifo")
	must.NoError(t, unix.Mkfifo(path, 0o600))
	return path
}

func TestNomadFIFO_KeepsOutputWithoutLogmon(t *testing.T) {
	path := nomadFIFO(t)
	out, err := OpenNomadFIFO(path, os.Getuid(), os.Getgid()) // without a reader
	must.NoError(t, err)
	defer out.Close()
	cmd := exec.Command("/bin/sh", "-c", "echo hello; echo again > /dev/stdout")
	cmd.Stdout = out
	must.NoError(t, cmd.Run())
	if n, err := Queued(int(out.Fd())); err != nil || n != 12 {
		t.Errorf("%d queued, %v", n, err)
	}
	logmon, err := os.Open(path)
	must.NoError(t, err)
	defer logmon.Close()
	b := make([]byte, 100)
	n, err := logmon.Read(b)
	must.NoError(t, err)
	equal(t, b[:n], []byte("hello\nagain\n"))
	n, err = Queued(int(out.Fd()))
	must.NoError(t, err, must.Sprintf("%d queued", n))
	test.Eq(t, 0, n, test.Sprintf("%d queued", n))
	out.Close()
	if n, err := logmon.Read(b); n != 0 || err == nil {
		t.Errorf("logmon sees no end: %d, %v", n, err)
	}
}

func TestNomadFIFO_IsBlockingForTheTaskAndBelongsToItsUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to give a file away")
	}
	path := nomadFIFO(t)
	for range 2 { // the second time, as after a restart, the FIFO already belongs to the task
		out, err := OpenNomadFIFO(path, 65534, 65533)
		must.NoError(t, err)
		var st unix.Stat_t
		must.NoError(t, unix.Fstat(int(out.Fd()), &st))
		flags, err := unix.FcntlInt(out.Fd(), unix.F_GETFL, 0)
		must.NoError(t, err)
		must.Eq(t, 65534, st.Uid, must.Sprintf("uid %d, gid %d, flags %o", st.Uid, st.Gid, flags))
		must.Eq(t, 65533, st.Gid, must.Sprintf("uid %d, gid %d, flags %o", st.Uid, st.Gid, flags))
		test.Eq(t, 0, flags&unix.O_NONBLOCK, test.Sprintf("uid %d, gid %d, flags %o", st.Uid, st.Gid, flags))
		out.Close()
	}
}

func TestNomadFIFO_RefusesOtherFiles(t *testing.T) {
	for name, plant := range map[string]func(path, victim string) error{
		"nothing":         func(path, victim string) error { return nil },
		"a file":          func(path, victim string) error { return os.WriteFile(path, nil, 0o666) },
		"a symbolic link": func(path, victim string) error { return os.Symlink(victim, path) },
		"a directory":     func(path, victim string) error { return os.Mkdir(path, 0o777) },
		"a second name":   func(path, victim string) error { return os.Link(victim, path) },
		"another user's FIFO": func(path, victim string) error {
			if err := unix.Mkfifo(path, 0o600); err != nil {
				return err
			}
			return os.Chown(path, 4242, 4242)
		},
		"a link as the directory": func(path, victim string) error {
			logs := filepath.Dir(path)
			if err := os.Remove(logs); err != nil {
				return err
			}
			if err := os.Symlink(filepath.Dir(victim), logs); err != nil {
				return err
			}
			return unix.Mkfifo(path, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "another user's FIFO" && os.Getuid() != 0 {
				t.Skip("needs root to give a file away")
			}
			path := nomadFIFO(t)
			must.NoError(t, os.Remove(path))
			victim := fifo(t)
			must.NoError(t, plant(path, victim))
			before := testsupport.Descriptors(t)
			out, err := OpenNomadFIFO(path, 65534, 65534)
			if err == nil {
				out.Close()
				t.Fatal("opened")
			}
			test.StrHasPrefix(t, "failed to open ", err.Error(), test.Sprint(err))
			after := testsupport.Descriptors(t)
			test.Eq(t, before, after, test.Sprint("open descriptors"))
		})
	}
}

func TestNomadFIFO_IsDevNullForDisabledLogs(t *testing.T) {
	out, err := OpenNomadFIFO(os.DevNull, 65534, 65534)
	must.NoError(t, err)
	defer out.Close()
	_, err = out.WriteString("x")
	test.NoError(t, err)
	var st, null unix.Stat_t
	must.NoError(t, unix.Fstat(int(out.Fd()), &st))
	must.NoError(t, unix.Stat(os.DevNull, &null))
	must.Eq(t, null.Rdev, st.Rdev, must.Sprintf("device %x, of uid", st.Rdev))
	test.Eq(t, 0, null.Uid, test.Sprintf("device %x, of uid", st.Rdev))
}
