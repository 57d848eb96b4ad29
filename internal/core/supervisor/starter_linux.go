// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/launch"
	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// errDiedStarting means that a new supervisor reported neither readiness nor an error. Most likely, it was killed.
var errDiedStarting = errors.New("failed to start the supervisor: it did not report that it is ready")

// startSupervisor starts a supervisor. It returns when that supervisor, or another one, accepts connections.
func (c *Client) startSupervisor(ctx context.Context) (err error) {
	for _, open := range binaries {
		var binary *os.File
		if binary, err = open(); err != nil {
			return err
		}
		err = c.startBinary(ctx, binary)
		for try := 0; cgroup.IsMissing(err) && try < 3; try++ {
			// a process that removes unused cgroups may have removed the empty leaf before the clone
			err = c.startBinary(ctx, binary)
		}
		binary.Close()
		if !errors.Is(err, os.ErrPermission) {
			return err
		}
	}
	return err
}

// binaries open the programs that can run as the supervisor, in order of preference. If the kernel refuses to execute a
// file in memory (because of a security module, for example), this process's own program is used.
var binaries = func() []func() (*os.File, error) {
	self := func() (*os.File, error) { return openHigh("/proc/self/exe") }
	if embedded == nil {
		return []func() (*os.File, error){self}
	}
	return []func() (*os.File, error){openBinary, self}
}()

// readyTime bounds how long a new supervisor may take until it is ready. Unless the machine is overloaded, it needs
// milliseconds.
const readyTime = 30 * time.Second

func (c *Client) startBinary(ctx context.Context, binary *os.File) error {
	stderr, err := openLog(c.cfg.Store)
	if err != nil {
		return err
	}
	defer stderr.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	ready, err := launch.Above(binary, w)
	w.Close()
	if err != nil {
		return err
	}
	defer ready.Close()

	c.leafing.Lock()
	entered := sync.OnceFunc(c.leafing.Unlock)
	defer entered()
	leaf := c.cfg.Leaf
	if err := leaf.Create(cgroup.Limits{}); err != nil {
		c.cfg.Log("failed to create a cgroup for the supervisor, which stays in the agent's cgroup: %v", err)
		leaf = cgroup.Group{Mode: cgroup.None}
	}
	dir, err := leaf.OpenDir()
	if err != nil {
		dir = nil
	}
	if dir != nil {
		defer dir.Close()
	}
	o := options{Dir: c.cfg.Store.Dir, Build: buildID(), Idle: c.cfg.Idle, Leaf: leaf, Surroundings: clientSurroundings()}
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", binary.Fd()))
	cmd.Args = o.arguments()
	if cmd.Env, err = o.environment(); err != nil {
		return err
	}
	cmd.Dir = "/"
	cmd.Stderr = stderr
	cmd.ExtraFiles = []*os.File{ready}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // protects it from Ctrl-C in the agent's terminal
	if dir != nil {
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	err = startWithDefaultScheduling(cmd)
	ready.Close()
	if err != nil {
		_ = leaf.Remove()
		return fmt.Errorf("failed to start the supervisor: %w", err)
	}
	go func() {
		_ = cmd.Wait()
		c.leafing.Lock()
		defer c.leafing.Unlock()
		_ = leaf.Remove() // if the supervisor did not; fails while another supervisor is in the leaf
	}()
	err = leaf.Join(cmd.Process.Pid) // for the v1 hierarchies, which clone(2) can't enter
	for try := 0; cgroup.IsMissing(err) && try < 3; try++ {
		// the previous supervisor removed the leaf as it ended
		if err = leaf.Create(cgroup.Limits{}); err == nil {
			err = leaf.Join(cmd.Process.Pid)
		}
	}
	if err != nil {
		c.cfg.Log("failed to move the supervisor into its cgroup: %v", err)
	}
	entered()

	_ = r.SetReadDeadline(time.Now().Add(readyTime))
	answer, err := bufio.NewReader(r).ReadString('\n')
	switch answer = strings.TrimSpace(answer); {
	case answer == "ready":
		c.cfg.Log("supervisor %d started", cmd.Process.Pid)
		return nil
	case answer == "busy":
		return nil
	case answer != "":
		return fmt.Errorf("failed to start the supervisor: %s", answer)
	default:
		_ = cmd.Process.Kill()
		return fmt.Errorf("%w (%w); see %s", errDiedStarting, err, c.cfg.Store.Log())
	}
}

// startWithDefaultScheduling starts a process that does not inherit the agent's scheduling (nice, chrt and so on).
// With a real-time policy, it could not join a v1 cgroup.
func startWithDefaultScheduling(cmd *exec.Cmd) error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		launch.DefaultScheduling()
		started <- cmd.Start()
	}()
	return <-started
}

// openLog creates the store's directory and, in it, the file for the supervisor's standard error. It retries if a
// supervisor that is ending removes the directory in between.
func openLog(store task.Store) (*os.File, error) {
	for try := 0; ; try++ {
		f, removed, err := tryLog(store)
		if !removed || try == 10 {
			return f, err
		}
	}
}

func tryLog(store task.Store) (f *os.File, removed bool, err error) {
	dir, err := owndir.Make(store.Dir, 0o700)
	if err != nil {
		return nil, errors.Is(err, fs.ErrNotExist), fmt.Errorf("the state directory can't be used: %w", err)
	}
	defer dir.Close()
	// O_NONBLOCK: if the path is a FIFO, do not wait for its other end
	const flags = unix.O_CREAT | unix.O_WRONLY | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Openat(int(dir.Fd()), filepath.Base(store.Log()), flags, 0o600)
	if err != nil {
		return nil, errors.Is(err, unix.ENOENT), &os.PathError{Op: "open", Path: store.Log(), Err: err}
	}
	f = os.NewFile(uintptr(fd), store.Log())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() ||
		st.Nlink != 1 {
		f.Close()
		return nil, err == nil && st.Nlink == 0,
			fmt.Errorf("%s was not made by this user's supervisor: remove it", store.Log())
	}
	return f, false, nil
}

// openBinary returns the small supervisor binary that was embedded at build time, as a file in memory. Where that is
// not possible, it returns the program of this process.
func openBinary() (*os.File, error) {
	f, err := launch.ProgramInMemory(argv0, embedded)
	if err != nil {
		return openHigh("/proc/self/exe")
	}
	defer f.Close()
	return openHigh(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// openHigh opens a file at a descriptor number above a child's ExtraFiles, so the child can execute /proc/self/fd/N.
func openHigh(path string) (*os.File, error) {
	ro, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer ro.Close()
	high, err := unix.FcntlInt(ro.Fd(), unix.F_DUPFD_CLOEXEC, 64)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(high), argv0), nil
}

// buildID identifies a supervisor's program by its bytes: commits with the same source have the same id.
var buildID = sync.OnceValue(func() string {
	if embedded != nil {
		sum := fnv.New128a()
		sum.Write(embedded)
		return hex.EncodeToString(sum.Sum(nil))
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/exe", &st); err != nil {
		return "unknown"
	}
	return fmt.Sprintf("self-%d-%d-%d-%d", st.Dev, st.Ino, st.Size, st.Mtim.Nano())
})
