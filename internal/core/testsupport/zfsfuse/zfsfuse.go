// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package zfsfuse makes ZFS pools in sparse files, for tests and demonstrations on machines without OpenZFS. It uses
// zfs-fuse, of which only one instance can run in a mount namespace.
package zfsfuse

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Script is a program that emulates OpenZFS's zfs. It runs the zfs of zfs-fuse, which must be in the same directory
// and have the script's name with Suffix appended.
//
//go:embed zfs.sh
var Script string

// Suffix is the suffix of zfs-fuse's own program.
const Suffix = ".fuse"

const (
	programs = "/usr/sbin/" // the directory of the programs in Debian's package

	// the command socket of zfs-fuse and its lock
	socket = "/run/zfs/zfs_socket"
	lock   = "/run/lock/zfs/zfs_lock"
)

// Pool is a pool in a file.
type Pool struct {
	Root    string // the root dataset
	Program string // absolute path of zfs
}

// Options configure a new pool.
type Options struct {
	Size     int64    // in bytes
	Datasets []string // to make below the root
	Stays    bool     // keep the pool when this process ends
	Env      []string // additional environment of the daemon
}

// ErrMissing is wrapped by Make's error if this machine lacks a requirement. The error names the requirement.
var ErrMissing = errors.New("missing requirement")

// Open returns the pool of a directory, and reports whether Make has made that pool.
func Open(dir string) (pool Pool, made bool) {
	pool = Pool{Root: fmt.Sprintf("outrider-%08x", crc32.ChecksumIEEE([]byte(dir))), Program: filepath.Join(dir, "zfs")}
	_, err := os.Lstat(pool.Program)
	return pool, err == nil
}

// Make makes a pool with all its files in dir, an absolute path that must not exist. If Make fails, it removes all
// files.
func Make(ctx context.Context, dir string, o Options) (Pool, error) {
	if err := check(); err != nil {
		return Pool{}, err
	}
	if err := os.Mkdir(dir, 0o711); err != nil {
		return Pool{}, err
	}
	pool, _ := Open(dir)
	if err := pool.fill(ctx, dir, o); err != nil {
		return Pool{}, errors.Join(fmt.Errorf("failed to create a zfs-fuse pool: %w", err), Remove(dir))
	}
	return pool, nil
}

func (p Pool) fill(ctx context.Context, dir string, o Options) error {
	image := filepath.Join(dir, "image")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, o.Size), start(ctx, dir, o)); err != nil {
		return err
	}
	// no cache file, since another zfs-fuse would read it
	err := run(ctx, "zpool", "create", "-f", "-o", "cachefile=none", "-O", "mountpoint=none", p.Root, image)
	if err != nil {
		return err
	}
	for _, name := range o.Datasets {
		if err := run(ctx, "zfs", "create", "-o", "mountpoint=none", p.Root+"/"+name); err != nil {
			return err
		}
	}
	return errors.Join(os.Symlink(programs+"zfs", p.Program+Suffix), os.WriteFile(p.Program, []byte(Script), 0o755))
}

// start starts a daemon in a directory, and returns when it responds.
func start(ctx context.Context, dir string, o Options) error {
	if daemon() != 0 {
		return errors.New("zfs-fuse is already running, and only one instance can run: stop it, or remove its pool")
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	err = errors.Join(os.MkdirAll(filepath.Dir(socket), 0o755), os.MkdirAll(filepath.Dir(lock), 0o755))
	if err != nil {
		return err
	}
	cmd := exec.Command(programs+"zfs-fuse", "--no-daemon", "--no-kstat-mount")
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), o.Env...), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if !o.Stays {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // Pdeathsig is sent when this thread exits
		started <- cmd.Start()
		ended <- cmd.Wait() // also returns an error if the start failed
	}()
	err = <-started
	if err != nil {
		return err
	}
	for daemon() == 0 {
		select {
		case err := <-ended:
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("zfs-fuse exited: %s (%w)", strings.TrimSpace(string(text)), err)
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("zfs-fuse did not accept commands in time: %w", ctx.Err()), cmd.Process.Kill())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// daemon returns the pid of the zfs-fuse that accepts commands, or 0.
func daemon() (pid int) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0
	}
	defer conn.Close()
	file, err := conn.(*net.UnixConn).File()
	if err != nil {
		return 0
	}
	defer file.Close()
	peer, err := unix.GetsockoptUcred(int(file.Fd()), unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0
	}
	return int(peer.Pid)
}

// Remove unmounts all datasets of the pool in dir, and removes the pool and dir. It is idempotent, and also cleans up
// after a killed Make.
func Remove(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	pool, _ := Open(dir)
	places := pool.mountPoints()
	if err := end(real); err != nil {
		return err
	}
	mounted, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "fuse.zfs" || m.Source != pool.Root && !strings.HasPrefix(m.Source, pool.Root+"/"), false
	})
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounted) {
		if err := unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "unmount", Path: m.Mountpoint, Err: err}
		}
		places = append(places, m.Mountpoint)
	}
	for _, place := range places {
		_ = unix.Rmdir(place) // removes only an empty directory, which was made for the mount
	}
	if daemon() == 0 { // otherwise the files belong to another daemon
		_, _ = os.Remove(socket), os.Remove(lock)
	}
	return os.RemoveAll(dir)
}

// mountPoints returns the mount points of a pool's datasets, mounted or not: a killed plugin may have made a directory
// without mounting the dataset. It returns none if the daemon does not respond.
func (p Pool) mountPoints() []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list := exec.CommandContext(ctx, p.Program, "list", "-H", "-r", "-o", "mountpoint", p.Root)
	list.WaitDelay = time.Second // children of a killed script keep its output open

	out, err := list.Output()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(place string) bool { return !filepath.IsAbs(place) })
}

// end kills the daemon of a directory and waits for its end.
func end(dir string) error {
	for range 3000 {
		pid := daemon()
		cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		switch {
		case pid == 0 || err == nil && cwd != dir:
			return nil
		case err == nil:
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond) // its threads exit with a delay
	}
	return errors.New("zfs-fuse did not exit")
}

// check returns an error that names a missing requirement.
func check() error {
	if unix.Geteuid() != 0 {
		return fmt.Errorf("%w: only root can create a pool", ErrMissing)
	}
	if _, err := os.Lstat("/dev/fuse"); err != nil {
		return fmt.Errorf("%w: zfs-fuse needs /dev/fuse", ErrMissing)
	}
	for _, program := range []string{"zfs-fuse", "zfs", "zpool"} {
		if _, err := exec.LookPath(programs + program); err != nil {
			return fmt.Errorf("%w: program %s (package zfs-fuse)", ErrMissing, program)
		}
	}
	return nil
}

// run runs a program. The error contains its output.
func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, programs+program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %s (%w)", program, strings.TrimSpace(string(out)), err)
	}
	return nil
}
