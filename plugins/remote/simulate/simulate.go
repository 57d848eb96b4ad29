// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package simulate makes a remote host out of this machine: a private OpenSSH server in namespaces of its own, for
// tests, the lab, and nomad-driver-remote simulate.
//
// The host has its own processes (pid 1 is this program), its own /home, /run, /etc/passwd and host name, and a network
// of its own if that is asked for. The rest of the file system is this machine's. Process ids of the host are not those
// of this machine: see Host.PID. When the host ends, the kernel ends each of its processes, detached ones too.
package simulate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

// The users of a host. Both log in with the same key.
const (
	Root = "root"
	User = "remote" // without rights
)

// Options of a host.
type Options struct {
	// Name is that of the endpoint in Block. The cgroups of root's tasks are this machine's: hosts need different names
	// for that.
	Name string

	// Shell is the login shell of both users, by default /bin/sh.
	Shell string

	// Config are lines of sshd_config(5), which come before those of this package and so have precedence.
	Config []string

	// Network gives the host a network of its own, and a link to this machine: port 22, LinkDown, LinkUp. Without it
	// the server listens on a free port of 127.0.0.1.
	Network bool
}

// ErrMissing is wrapped by the error of Start on a machine that lacks something; its text says what.
var ErrMissing = errors.New("it is missing")

// Host is a simulated host.
type Host struct {
	Address string // IP address
	Port    int
	KeyFile string // of the private key that both users log in with
	HostKey string // "ssh-ed25519 AAAA…"

	dir     string
	options Options
	sshd    string
	link    link

	mu      sync.Mutex // guards what follows, and allows one command to the holder at a time
	holder  *exec.Cmd
	command io.WriteCloser
	answers *bufio.Reader
}

// Start makes a host, all of whose files are in dir, which must not exist. The program's main function calls Main
// first. If Start fails, it leaves nothing. The host ends with Stop, and when this process ends.
func Start(ctx context.Context, dir string, o Options) (*Host, error) {
	if !hasRole {
		return nil, errors.New("the main function must call simulate.Main first")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	h := &Host{dir: dir, options: o}
	if h.sshd, err = check(o); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, fmt.Errorf("failed to make a directory for the host: %w", err)
	}
	if err = h.prepare(ctx); err == nil {
		err = h.Boot(ctx)
	}
	if err == nil {
		return h, nil
	}
	return nil, errors.Join(err, h.Stop())
}

// check returns the path of sshd, or what the machine lacks.
func check(o Options) (sshd string, err error) {
	if os.Geteuid() != 0 {
		return "", fmt.Errorf("only root can simulate a host: %w", ErrMissing)
	}
	if sshd, err = find("sshd"); err != nil {
		return "", fmt.Errorf("a simulated host needs the program sshd of the package openssh-server: %w", ErrMissing)
	}
	if o.Network {
		for program, of := range map[string]string{"ip": "iproute2", "nsenter": "util-linux"} {
			if _, err := find(program); err != nil {
				return "", fmt.Errorf("a host with a network needs the program %s of the package %s: %w", program, of,
					ErrMissing)
			}
		}
	}
	return sshd, nil
}

// find is exec.LookPath that also looks where only root has programs, and where Nix has them.
func find(program string) (string, error) {
	path, err := exec.LookPath(program)
	for _, dir := range []string{"/usr/sbin", "/sbin", "/run/current-system/sw/bin"} {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, program))
		}
	}
	return path, err
}

// Boot starts a host that was halted, with its files and keys as they were. Processes that ran are gone.
func (h *Host) Boot(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holder != nil {
		return errors.New("the simulated host runs already")
	}
	if err := h.startHolder(); err != nil {
		return fmt.Errorf("failed to start the simulated host: %w", err)
	}
	err := h.ask("boot")
	if err == nil && h.options.Network {
		err = h.link.set("up")
	}
	if err == nil {
		err = h.startServer(ctx)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("failed to start the simulated host: %w", err), h.halt())
	}
	return nil
}

func (h *Host) startHolder() error {
	with, err := json.Marshal(settings{Dir: h.dir, SSHD: h.sshd, Network: h.options.Network})
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", h.dir) // the argument is for a reader of ps
	cmd.Args[0] = argv0
	cmd.Env = []string{searchPath, settingsVar + "=" + string(with)}
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Setsid:     true, // an interrupt of the terminal is this process's to handle
	}
	if h.options.Network {
		cmd.ExtraFiles = []*os.File{h.link.namespace}
	}
	command, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	answers, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	h.holder, h.command, h.answers = cmd, command, bufio.NewReader(answers)
	return nil
}

// ask sends a command to the holder. The caller holds the lock.
func (h *Host) ask(command string) error {
	if h.holder == nil {
		return errors.New("the simulated host does not run")
	}
	if _, err := fmt.Fprintln(h.command, command); err != nil {
		return err
	}
	answer, err := h.answers.ReadString('\n')
	if err != nil {
		return fmt.Errorf("the simulated host has ended: %w", err)
	}
	if answer = strings.TrimSpace(answer); answer != ok {
		return errors.New(answer)
	}
	return nil
}

// startServer returns when the server answers.
func (h *Host) startServer(ctx context.Context) error {
	if err := h.ask("start"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		err := h.hello(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(h.Log())
			return fmt.Errorf("the SSH server does not answer: %w\n%s", err, log)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// hello reads the first line of the server.
func (h *Host) hello(ctx context.Context) error {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", h.HostPort())
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	_, err = bufio.NewReader(c).ReadString('\n')
	return err
}

// KillServer kills the SSH server and each of its connections. Other processes of the host go on, as when a server is
// restarted.
func (h *Host) KillServer() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ask("kill")
}

// StartServer starts the server again. It returns when that answers.
func (h *Host) StartServer(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.startServer(ctx)
}

// Halt ends every process of the host, at once: as a loss of power does. The files stay.
func (h *Host) Halt() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.halt()
}

func (h *Host) halt() error {
	if h.holder == nil {
		return nil
	}
	_ = h.holder.Process.Kill() // and with pid 1 the kernel kills the rest, and waits for it
	_ = h.command.Close()
	_ = h.holder.Wait()
	h.holder = nil
	if h.options.Network {
		return h.link.set("down")
	}
	return nil
}

// Stop ends the host and removes its files and its network.
func (h *Host) Stop() error {
	err := h.Halt()
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(err, h.removeGroups(), h.link.remove(), os.RemoveAll(h.dir))
}

// stateDir is the directory of root's tasks in Block.
func (h *Host) stateDir() string {
	return h.Home(Root) + "/.local/state/outrider-remote-" + h.options.Name
}

// removeGroups removes the cgroups of root's tasks, in which nothing runs any more.
func (h *Host) removeGroups() error {
	support, parent := cgroup.Detect(""), shim.CgroupParent(h.stateDir())
	err := cgroup.LeafBelow(support, parent, "supervisor").Remove()
	objects, _ := os.ReadDir(h.Path(h.stateDir() + "/objects"))
	for _, o := range objects {
		err = errors.Join(err, cgroup.TaskBelow(support, parent, o.Name()).Remove())
	}
	return err
}

// LinkDown makes the host unreachable, without a word to either side. The host needs Options.Network.
func (h *Host) LinkDown() error { return h.link.set("down") }

// LinkUp ends LinkDown.
func (h *Host) LinkUp() error { return h.link.set("up") }

// HostPort is the server's address.
func (h *Host) HostPort() string { return net.JoinHostPort(h.Address, strconv.Itoa(h.Port)) }

// Home is the home directory of a user, on the host.
func (h *Host) Home(user string) string { return "/home/" + user }

// Path is where this machine has a file of the host: the host's /home is a directory of its own.
func (h *Host) Path(path string) string {
	if rest, ok := strings.CutPrefix(path, "/home/"); ok {
		return filepath.Join(h.dir, "home", rest)
	}
	return path
}

// Log is the file with the server's messages, on this machine.
func (h *Host) Log() string { return filepath.Join(h.dir, "log") }

// Process is a process of the host.
type Process struct {
	PID  int // on the host
	Here int // on this machine
	Args []string
}

// Processes are those of the host, without the server's, its sessions', and this program's own.
func (h *Host) Processes() ([]Process, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.holder == nil {
		return nil, nil
	}
	namespace := fmt.Sprintf("/proc/%d/ns/pid", h.holder.Process.Pid)
	ours, err := os.Readlink(namespace)
	if err != nil {
		return nil, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, dir := range dirs {
		of, err := os.Readlink(dir + "/ns/pid")
		if exe, _ := os.Readlink(dir + "/exe"); err != nil || of != ours || isServer(exe) {
			continue // or it has ended
		}
		p := Process{PID: innerPID(dir)}
		p.Here, _ = strconv.Atoi(filepath.Base(dir))
		if b, _ := os.ReadFile(dir + "/cmdline"); len(b) > 0 {
			p.Args = strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
		}
		if p.PID > 1 {
			found = append(found, p)
		}
	}
	return found, nil
}

// PID is the id that a process of the host has on this machine, 0 if there is none.
func (h *Host) PID(remote int) int {
	all, _ := h.Processes()
	for _, p := range all {
		if p.PID == remote {
			return p.Here
		}
	}
	return 0
}

// innerPID is the id of a process in its own pid namespace, 0 if it has ended.
func innerPID(dir string) int {
	status, _ := os.ReadFile(dir + "/status")
	for line := range strings.Lines(string(status)) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			all := strings.Fields(ids)
			pid, _ := strconv.Atoi(all[len(all)-1])
			return pid
		}
	}
	return 0
}

// Block is the host as an endpoint in the plugin's configuration.
func (h *Host) Block(user string) string {
	stateDir := ""
	if user == Root {
		stateDir = fmt.Sprintf("    state_dir = %q\n", h.stateDir())
	}
	return fmt.Sprintf(`endpoint %q {
  ssh {
    host      = %q
    port      = %d
    user      = %q
    key_file  = %q
    host_keys = [%q]
%s  }
}
`, h.options.Name, h.Address, h.Port, user, h.KeyFile, h.HostKey, stateDir)
}
