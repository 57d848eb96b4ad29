// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inuse_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/dataset/inuse"
)

// useVar makes a process of this test use a directory: "<way> <directory> <another>".
const useVar = "INUSE_TEST"

// ways to use a directory, each with what is said about it. The other directory is an empty one
// elsewhere. The caller is in a mount namespace of its own.
var ways = map[string]struct {
	said string
	use  func(dir, other string) error
}{
	"an open file": {"has a file of it open", func(dir, _ string) error {
		_, err := unix.Open(dir+"/file", unix.O_RDONLY, 0)
		return err
	}},
	"an open path": {"has a file of it open", func(dir, _ string) error {
		_, err := unix.Open(dir, unix.O_PATH, 0)
		return err
	}},
	"a deleted file": {"has a file of it open", func(dir, _ string) error {
		_, err := unix.Open(dir+"/deleted", unix.O_CREAT|unix.O_RDWR, 0o600)
		if err == nil {
			err = unix.Unlink(dir + "/deleted")
		}
		return err
	}},
	"a file mapped": {"has a file of it mapped", func(dir, _ string) error {
		fd, err := unix.Open(dir+"/file", unix.O_RDONLY, 0)
		if err == nil {
			_, err = unix.Mmap(fd, 0, 4, unix.PROT_READ, unix.MAP_PRIVATE)
			unix.Close(fd)
		}
		return err
	}},
	"its directory": {"is in its directory", func(dir, _ string) error { return os.Chdir(dir + "/sub") }},
	"its root":      {"has it as its root", func(dir, _ string) error { return unix.Chroot(dir) }},
	"a mount": {"has it mounted at ", func(dir, other string) error {
		return unix.Mount(dir, other, "", unix.MS_BIND, "")
	}},
	"a mount of a part": {"has it mounted at ", func(dir, other string) error {
		return unix.Mount(dir+"/sub", other, "", unix.MS_BIND, "")
	}},
	"a layer of an overlay": {"has it mounted at ", func(dir, other string) error {
		return unix.Mount("overlay", other, "overlay", 0, "lowerdir=/usr:"+dir+"/sub")
	}},
	"descriptors of a thread's own": {"has a file of it open", func(dir, _ string) error {
		return inThread(func() error {
			if err := unix.Unshare(unix.CLONE_FILES); err != nil {
				return err
			}
			_, err := unix.Open(dir+"/file", unix.O_RDONLY, 0)
			return err
		})
	}},
	"a directory of a thread's own": {"is in its directory", func(dir, _ string) error {
		return inThread(func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			return unix.Chdir(dir)
		})
	}},
	"a mount in a thread's namespace": {"has it mounted at ", func(dir, other string) error {
		return inThread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return err
			}
			return unix.Mount(dir, other, "", unix.MS_BIND, "")
		})
	}},
}

// inThread runs f on a thread that stays.
func inThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
		select {}
	}()
	return <-done
}

func TestMain(m *testing.M) {
	if text := os.Getenv(useVar); text != "" {
		way := strings.SplitN(text, "|", 3)
		err := ways[way[0]].use(way[1], way[2])
		fmt.Println(err)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(m.Run())
}

// fileSystems makes some, each with a directory that has a file and a directory. The mount itself, which each
// process of the host has, is above that.
func fileSystems(t *testing.T, names ...string) (paths []string) {
	t.Helper()
	testsupport.NeedRoot(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must.NoError(t, err)
	for _, name := range names {
		mount := filepath.Join(dir, name)
		must.NoError(t, os.Mkdir(mount, 0o755))
		must.NoError(t, unix.Mount(name, mount, "tmpfs", 0, ""))
		t.Cleanup(func() { must.NoError(t, unix.Unmount(mount, 0)) })
		path := filepath.Join(mount, "top")
		must.NoError(t, os.Mkdir(path, 0o755))
		must.NoError(t, os.WriteFile(path+"/file", []byte("content"), 0o600))
		must.NoError(t, os.Mkdir(path+"/sub", 0o755))
		paths = append(paths, path)
	}
	return paths
}

// use starts a process that uses a directory until it is stopped.
func use(t *testing.T, way, dir string) (pid int, stop func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), useVar+"="+way+"|"+dir+"|"+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS} // Go makes its mounts private
	in, err := cmd.StdinPipe()
	must.NoError(t, err)
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	stop = func() {
		in.Close()
		must.NoError(t, cmd.Wait())
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	must.NoError(t, err)
	must.Eq(t, "<nil>\n", line)
	return cmd.Process.Pid, stop
}

func TestUsers_AreFoundInEachWay(t *testing.T) {
	paths := fileSystems(t, "used", "other", "used2")
	none := func() {
		t.Helper()
		users, err := inuse.Users(t.Context(), paths...)
		must.NoError(t, err)
		must.SliceEmpty(t, users)
	}
	none()
	for way, w := range ways {
		t.Run(way, func(t *testing.T) {
			pid, stop := use(t, way, paths[0])
			defer stop()
			users, err := inuse.Users(t.Context(), paths...)
			must.NoError(t, err)
			must.Len(t, 1, users)
			must.StrHasPrefix(t, fmt.Sprintf("process %d (", pid), users[0])
			must.StrContains(t, users[0], ") "+w.said)
			users, err = inuse.Users(t.Context(), paths[1:]...)
			must.NoError(t, err)
			must.SliceEmpty(t, users) // others are not
		})
	}
	none()
}

func TestUsers_RunItsPrograms(t *testing.T) {
	dir := fileSystems(t, "used")[0]
	program, err := os.ReadFile("/bin/sleep")
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(dir+"/sleep", program, 0o700))
	cmd := exec.Command(dir+"/sleep", "1000")
	must.NoError(t, cmd.Start())
	users, err := inuse.Users(t.Context(), dir)
	must.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	must.NoError(t, err)
	must.Eq(t, []string{fmt.Sprintf("process %d (sleep) runs a program of it", cmd.Process.Pid)}, users)
}

func TestUsers_AreLoopDevicesToo(t *testing.T) {
	dir := fileSystems(t, "used")[0]
	must.NoError(t, os.WriteFile(dir+"/image", make([]byte, 1<<20), 0o600))
	device, err := exec.Command("losetup", "--find", "--show", dir+"/image").Output()
	must.NoError(t, err)
	loop := strings.TrimSpace(string(device))
	users, err := inuse.Users(t.Context(), dir)
	must.NoError(t, exec.Command("losetup", "--detach", loop).Run())
	must.NoError(t, err)
	must.Eq(t, []string{"loop device " + filepath.Base(loop) + " has a file of it open"}, users)
}

// A process with a directory open of a file system that does not answer delays nothing.
func TestUsers_DoNotWaitForOtherFileSystems(t *testing.T) {
	dir := fileSystems(t, "used")[0]
	hung := testsupport.HungDir(t)
	fd, err := unix.Open(hung, unix.O_PATH, 0)
	must.NoError(t, err)
	defer unix.Close(fd)
	start := time.Now()
	users, err := inuse.Users(t.Context(), dir)
	must.NoError(t, err)
	must.SliceEmpty(t, users)
	must.Less(t, 5*time.Second, time.Since(start))
}

func TestUsers_EndMeanwhile(t *testing.T) {
	dir := fileSystems(t, "used")[0]
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = exec.Command("/bin/true").Run()
		}
	}()
	for range 10 {
		users, err := inuse.Users(t.Context(), dir)
		must.NoError(t, err)
		must.SliceEmpty(t, users)
	}
	cancel()
	<-done
}

// Without the rights to look at all processes, nothing is said to be unused.
func TestUsers_AreUnknownWithoutRights(t *testing.T) {
	if os.Geteuid() == 0 {
		self := filepath.Join(t.TempDir(), "test") // where others can run it
		binary, err := os.ReadFile("/proc/self/exe")
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(self, binary, 0o755)) //nolint:gosec // others run it
		for dir := filepath.Dir(self); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			must.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // the same
		}
		cmd := exec.Command(self, "-test.run", "^"+t.Name()+"$")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
		return
	}
	_, err := inuse.Users(t.Context(), "/proc")
	must.ErrorContains(t, err, "failed to look at process ")
	must.ErrorContains(t, err, "which may use it")
}

func TestUsers_OfWhatIsNotThere(t *testing.T) {
	_, err := inuse.Users(t.Context(), "/no/such/directory")
	must.ErrorIs(t, err, os.ErrNotExist)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = inuse.Users(ctx, "/proc")
	must.ErrorIs(t, err, context.Canceled)
}

func BenchmarkUsers(b *testing.B) {
	for b.Loop() {
		if _, err := inuse.Users(b.Context(), "/proc"); err != nil {
			b.Fatal(err)
		}
	}
}
