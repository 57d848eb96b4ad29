// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// argv0 is the name by which Main knows that it runs as pid 1 of a host.
const argv0 = "outrider-simulate"

// settingsVar is the environment variable with the settings.
const settingsVar = "OUTRIDER_SIMULATE"

const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

const ok = "ok" // the holder's answer; any other is an error

type settings struct {
	Dir     string `json:"dir"`
	SSHD    string `json:"sshd"`
	Network bool   `json:"network"` // descriptor 3 is its namespace
}

// hasRole is set by Main: a program without it would run again from its beginning, as pid 1.
var hasRole bool

// Main runs pid 1 of a host if the program was started as such, and does not return then. A program that calls Start,
// a test's TestMain too, calls it first.
func Main() {
	hasRole = true
	if os.Args[0] != argv0 {
		return
	}
	runtime.LockOSThread() // the thread has the host's network, and starts the server
	var s settings
	err := json.Unmarshal([]byte(os.Getenv(settingsVar)), &s)
	if err == nil {
		err = s.serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the simulated host ends:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve obeys commands until its client ends.
func (s settings) serve() error {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	go reap(ended)
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		var err error
		switch commands.Text() {
		case "boot":
			err = s.boot()
		case "start":
			err = s.start()
		case "kill":
			err = killServer()
		}
		answer := ok
		if err != nil {
			answer = fmt.Sprintf("%q", err.Error()) // a line
		}
		if _, err := fmt.Println(answer); err != nil {
			return err
		}
	}
	return commands.Err()
}

// reap ends zombies, as pid 1 has to.
func reap(ended <-chan os.Signal) {
	for range ended {
		for pid := 1; pid > 0; {
			pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
		}
	}
}

// boot makes the host's own files.
func (s settings) boot() error {
	if s.Network {
		if err := unix.Setns(3, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("failed to enter the network: %w", err)
		}
		if err := unix.Close(3); err != nil {
			return err
		}
	}
	// not private: what is unmounted on this machine would stay in use here
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("failed to detach the mounts: %w", err)
	}
	const noexec = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("proc", "/proc", "proc", noexec, ""); err != nil {
		return fmt.Errorf("failed to mount /proc: %w", err)
	}
	dir, err := hold(s.Dir) // it may be below what is replaced
	if err != nil {
		return err
	}
	run, err := hold("/run")
	if err != nil {
		return err
	}
	if err := unix.Mount("run", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("failed to mount /run: %w", err)
	}
	if err := copyRun(run); err != nil {
		return err
	}
	for _, path := range []string{"/run/sshd", private} { // of the server's process that talks to strangers, and of us
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
	}
	for _, m := range [][2]string{
		{dir, private}, {dir + "/home", "/home"}, {dir + "/passwd", "/etc/passwd"}, {dir + "/shadow", "/etc/shadow"},
	} {
		if err := unix.Mount(m[0], m[1], "", unix.MS_BIND, ""); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("failed to mount %s: %w", m[1], err)
		}
	}
	id := private + "/boot_id"
	if err := os.WriteFile(id, []byte(newBootID()), 0o444); err != nil {
		return err
	}
	const own = "/proc/sys/kernel/random/boot_id"
	if err := unix.Mount(id, own, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("failed to mount %s: %w", own, err)
	}
	return unix.Sethostname([]byte("simulated"))
}

// newBootID is as the kernel's: after a restart processes of before it are no more, whatever has their ids.
func newBootID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("%x-%x-%x-%x-%x\n", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// hold opens a directory and returns a path to it that stays when something is mounted over it.
func hold(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("failed to open %s: %w", path, err)
	}
	return "/proc/self/fd/" + strconv.Itoa(fd), nil
}

// copyRun gives the host's /run what this machine has in its own now, such as the sockets of daemons. A directory for
// sshd can't be made there otherwise.
func copyRun(from string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		source, target := filepath.Join(from, e.Name()), filepath.Join("/run", e.Name())
		switch {
		case target == "/run/sshd" || target == private:
			continue
		case e.Type() == fs.ModeSymlink:
			var to string
			if to, err = os.Readlink(source); err == nil {
				err = os.Symlink(to, target)
			}
		case e.IsDir():
			if err = os.Mkdir(target, 0o755); err == nil {
				err = unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, "")
			}
		default:
			if err = os.WriteFile(target, nil, 0o600); err == nil {
				err = unix.Mount(source, target, "", unix.MS_BIND, "")
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
			return fmt.Errorf("failed to take over %s: %w", target, err)
		}
	}
	return nil
}

// start starts the server.
func (s settings) start() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	log, err := os.OpenFile(filepath.Join(private, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{s.SSHD, "-D", "-e", "-f", filepath.Join(private, "sshd_config")}
	_, err = syscall.ForkExec(s.SSHD, args, &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{searchPath},
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("failed to start %s: %w", s.SSHD, err)
	}
	return nil
}

// isServer reports whether an executable is the server, or a part of it.
func isServer(exe string) bool {
	switch filepath.Base(exe) {
	case "sshd", "sshd-session", "sshd-auth":
		return true
	}
	return false
}

// killServer returns when no process of the server is left.
func killServer() error {
	for left := true; left; time.Sleep(time.Millisecond) {
		left = false
		files, err := filepath.Glob("/proc/[0-9]*/exe")
		if err != nil {
			return err
		}
		for _, file := range files {
			if exe, _ := os.Readlink(file); isServer(exe) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
				left = true
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
	return nil
}
