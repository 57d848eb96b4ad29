// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// What zfs-fuse has in places that can't be chosen, so only one can run in a mount namespace.
const (
	zfsSocket = "/run/zfs/zfs_socket"
	zfsLock   = "/run/lock/zfs/zfs_lock"
)

// private is set in a process whose mount namespace Private has prepared.
var private bool

// Private gives a mount namespace, which must be this process's own, places for a zfs-fuse
// of its own. That one ends with this process. Its mounts are seen in namespaces that are
// made from this one, as on a host.
func Private() error {
	for _, mount := range []struct {
		kind, dir string
		flags     uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{"", "/", unix.MS_REC | unix.MS_SHARED},
		{"tmpfs", filepath.Dir(zfsSocket), 0},
		{"tmpfs", filepath.Dir(filepath.Dir(zfsLock)), 0},
	} {
		if err := os.MkdirAll(mount.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(mount.kind, mount.dir, mount.kind, mount.flags, ""); err != nil {
			return &os.PathError{Op: "mount", Path: mount.dir, Err: err}
		}
	}
	private = true
	return nil
}

// zfsImage is the file of the pool. In a private namespace it is in memory, where no other
// process's writes to the disk delay it, and goes with the namespace.
func zfsImage(dir string) string {
	if private {
		dir = filepath.Dir(zfsSocket)
	}
	return filepath.Join(dir, "image")
}

// zfsPool is the name of the pool in dir. No other has it.
func zfsPool(dir string) string {
	return fmt.Sprintf("outrider-%08x", crc32.ChecksumIEEE([]byte(dir)))
}

// makeZFSFuse starts a zfs-fuse that has dir as its directory, with a pool in dir/image.
func makeZFSFuse(ctx context.Context, dir string, size int64) (Pool, error) {
	program, err := find("zfs")
	if err != nil {
		return Pool{}, err
	}
	if !exists("/dev/fuse") {
		return Pool{}, fmt.Errorf("zfs-fuse needs FUSE, and there is no /dev/fuse: %w", ErrMissing)
	}
	if answers() {
		return Pool{}, errors.New("zfs-fuse runs already, and only one can: stop it, or remove its pool")
	}
	image, pool := zfsImage(dir), zfsPool(dir)
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		return Pool{}, err
	}
	if err := os.Truncate(image, size); err != nil {
		return Pool{}, err
	}
	if err := startZFSFuse(ctx, dir); err != nil {
		return Pool{}, err
	}
	// without a cache file the pool is in none that another zfs-fuse reads
	_, err = run(ctx, "zpool", "create", "-f", "-o", "cachefile=none", "-O", "mountpoint=none", pool, image)
	if err != nil {
		return Pool{}, fmt.Errorf("failed to make a ZFS pool: %w", err)
	}
	return Pool{Root: pool, Program: program}, nil
}

// startZFSFuse returns when the daemon answers.
func startZFSFuse(ctx context.Context, dir string) error {
	path, err := find("zfs-fuse")
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	for _, file := range []string{zfsSocket, zfsLock} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
	}
	cmd := exec.Command(path, "--no-daemon", "--no-kstat-mount")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if private {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the signal comes when the thread ends
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	for !answers() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			text, _ := os.ReadFile(log.Name())
			return fmt.Errorf("zfs-fuse ended: %s (%w)", strings.TrimSpace(string(text)), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// answers reports whether a zfs-fuse is there for the zfs program.
func answers() bool {
	c, err := net.Dial("unix", zfsSocket)
	if err == nil {
		c.Close()
	}
	return err == nil
}

// removeZFSFuse ends the daemon of dir, and what it has mounted anywhere.
func removeZFSFuse(_ context.Context, dir string) error {
	pool := zfsPool(dir)
	mounted, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.FSType != "fuse.zfs" || m.Source != pool && !strings.HasPrefix(m.Source, pool+"/"), false
	})
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(mounted) {
		if err := unix.Unmount(m.Mountpoint, unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "unmount", Path: m.Mountpoint, Err: err}
		}
		_ = os.Remove(m.Mountpoint) // an empty directory that was made for it
	}
	if err := endZFSFuse(dir); err != nil {
		return err
	}
	if answers() { // another's; else what one leaves that was killed
		return nil
	}
	return errors.Join(removeFile(zfsImage(dir)), removeFile(zfsSocket), removeFile(zfsLock))
}

func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// endZFSFuse kills the daemon that has dir as its directory: its pool is removed with it.
func endZFSFuse(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return err
	}
	for _, link := range links {
		pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
		process, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it ended
		}
		comm, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "comm"))
		cwd, linkErr := os.Readlink(link)
		ending := errors.Is(linkErr, os.ErrNotExist) // but its threads may still answer
		if string(comm) == "zfs-fuse\n" && (cwd == dir || ending) {
			if !ending {
				err = unix.PidfdSendSignal(process, unix.SIGKILL, nil, 0)
			}
			for err == nil || errors.Is(err, unix.EINTR) { // it has many threads, which take their time
				var n int
				fds := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}} //nolint:gosec // a descriptor
				if n, err = unix.Poll(fds, 10_000); n > 0 {
					break
				} else if err == nil {
					err = errors.New("it does not end")
				}
			}
		}
		unix.Close(process)
		if err != nil {
			return fmt.Errorf("failed to end zfs-fuse, process %d: %w", pid, err)
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
