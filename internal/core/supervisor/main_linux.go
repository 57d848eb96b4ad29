// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/collector"
	"github.com/outrider-dev/outrider/internal/core/launch"
	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// argv0 is the first argument of a supervisor, and its name in ps. A plugin binary that is started with this first
// argument runs a role, not the plugin.
const argv0 = "outrider-supervisor"

const (
	roleSupervise = "supervise"
	roleLaunch    = "launch"
	roleNoFile    = "nofile"
)

// optionsVar is the environment variable that holds a supervisor's options. The arguments contain only what is useful
// in the output of ps.
const optionsVar = "OUTRIDER_SUPERVISOR"

// options configure a supervisor process.
type options struct {
	Dir   string        `json:"dir"`   // the directory of the Store
	Build string        `json:"build"` // identifies the binary
	Idle  time.Duration `json:"idle"`  // how long it runs without tasks and clients, in ns
	Leaf  cgroup.Group  `json:"leaf"`  // the cgroup that the supervisor was put in

	// Surroundings are what the supervisor inherited at its start; nil if an older version started it.
	Surroundings *surroundings `json:"surroundings,omitempty"`

	// set only for an upgrade in place: descriptors that stay open across execve(2)
	Listener int `json:"listener,omitempty"`
	Lock     int `json:"lock,omitempty"`
}

// readyFD is the descriptor to which a new supervisor writes "ready\n", "busy\n" (another one already serves this
// directory) or an error message.
const readyFD = 3

// Main runs the role that the arguments name, and then exits the process. If they name no role, Main returns
// immediately. Call it first in a plugin's main function.
func Main() {
	if len(os.Args) < 2 || os.Args[0] != argv0 {
		return
	}
	switch os.Args[1] {
	case roleLaunch:
		launch.Main()
	case collector.Role:
		setName("outrider-collec")
		collector.Main()
	case roleNoFile:
		printNoFile()
	case roleSupervise:
		os.Exit(supervise(os.Getenv(optionsVar)))
	default:
		return
	}
	os.Exit(0)
}

func supervise(with string) int {
	setName("outrider-superv")
	// signals to the agent's process group must not end this process; if it ignored them, tasks would inherit that
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE, syscall.SIGTERM)

	debug.SetGCPercent(20) // collect garbage often: each plugin has a supervisor, and the heaps are small

	var o options
	if err := json.Unmarshal([]byte(with), &o); err != nil {
		fmt.Fprintln(os.Stderr, "outrider-supervisor:", err)
		return 2
	}
	var ready *os.File // nil after an upgrade, when no client waits
	if o.Listener == 0 {
		ready = os.NewFile(readyFD, "ready")
		syscall.CloseOnExec(readyFD)
	}
	report := func(what string) {
		fmt.Fprintln(ready, what)
		ready.Close()
	}
	s, err := newServer(o)
	if errors.Is(err, errBusy) {
		report("busy")
		return 0
	}
	if err != nil {
		report(err.Error())
		return 1
	}
	startLog(s.store.Log())
	slog.Info("supervisor started", "pid", os.Getpid(), "build", s.build, "upgraded", o.Listener != 0)
	// the OOM killer should choose this process last: everything else can be restarted
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-900"), 0)
	found, err := s.register()
	if err != nil {
		report(err.Error())
		return 1
	}
	s.collector.Find() // a collector from before an upgrade is now known, so reapOrphans spares it
	becomeSubreaper()
	go s.reapOrphans()
	go wire.Accept(s.listener, s.serve)
	go s.adoptAll(found)
	report("ready")
	s.run()
	return 0
}

// arguments and environment return the argv and the environment for a supervisor with these options.
func (o options) arguments() []string { return []string{argv0, roleSupervise, o.Dir} }

func (o options) environment() ([]string, error) {
	b, err := json.Marshal(o)
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", optionsVar + "=" + string(b)}, err
}

var errBusy = errors.New("another supervisor serves this directory")

func newServer(o options) (*server, error) {
	s := &server{
		store: task.Store{Dir: o.Dir}, build: o.Build, leaf: o.Leaf, idle: o.Idle, surroundings: o.Surroundings,
		starters: make(semaphore, 4), enders: make(semaphore, 4),
		processes: map[string]*process{}, clients: map[*wire.Peer]bool{}, launchers: map[int]bool{},
		busySince: time.Now(),
	}
	var err error
	if s.surroundings == nil {
		if s.surroundings, err = ownSurroundings(); err != nil {
			return nil, err
		}
	}
	if s.mounts, err = ownMounts(); err != nil {
		return nil, err
	}
	s.collector = newCollector(s)
	if s.loop, err = newLoop(s); err != nil {
		return nil, err
	}
	if o.Listener != 0 {
		return s, s.inherit(o)
	}
	if s.lock, err = lockDir(o.Dir); err != nil {
		return nil, err
	}
	_ = os.Remove(s.store.Socket()) // a supervisor that was killed leaves its socket
	s.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: s.store.Socket(), Net: "unix"})
	return s, err
}

// lockDir creates the directory and locks it with flock(2), a lock that the kernel always releases when the holder
// exits. It refuses a directory that another user could replace.
func lockDir(dir string) (*os.File, error) {
	for range 10 {
		f, err := owndir.Make(dir, 0o700)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the previous supervisor removed the directory between two steps of Make
		}
		if err != nil {
			return nil, fmt.Errorf("the state directory can't be used: %w", err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			return nil, errBusy
		}
		// the previous supervisor may have removed the directory between Make and Flock
		here, err1 := os.Stat(dir)
		mine, err2 := f.Stat()
		if err1 == nil && err2 == nil && os.SameFile(here, mine) {
			return f, nil
		}
		f.Close()
	}
	return nil, fmt.Errorf("failed to lock %s: another process keeps replacing it", dir)
}

// run watches the processes until the supervisor has been without tasks and clients for a while. It then removes the
// files and the cgroup that are no longer needed, and returns.
func (s *server) run() {
	go s.loop.run()
	every := min(s.idle/4+time.Millisecond, time.Second)
	var freed int64
	for range time.Tick(every) {
		// after a burst of requests the heap is mostly garbage: return the memory; for a small heap, this costs little
		if last := s.lastRequest.Load(); last != freed && time.Since(time.Unix(0, last)) > every {
			freed = last
			debug.FreeOSMemory()
		}
		if s.mayEnd() {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	s.collector.End(ctx)
	cancel()
	s.listener.Close() // removes the socket
	_ = os.Remove(s.store.Log())
	_ = os.Remove(oldLog(s.store.Log()))
	_ = os.RemoveAll(s.store.Retired())
	// Remove deletes only empty directories, so exit records that no plugin has read are kept
	_ = os.Remove(filepath.Join(s.store.Dir, "tasks"))
	_ = os.Remove(s.store.Dir)
	_ = os.Remove(filepath.Dir(s.store.Dir))
	if top := filepath.Dir(filepath.Dir(s.store.Dir)); top == task.DefaultDir { // the operator's own directory stays
		_ = os.Remove(top)
	}
	// if this process can't leave its cgroup, the client that started this process removes the cgroup
	if s.leaf.Leave() == nil {
		s.removeLeaf()
	}
}

// leafTime is how long removeLeaf waits until the cgroup is empty. On an overloaded machine, the collector may still
// run in it after this process has left.
const leafTime = 30 * time.Second

// removeLeaf removes the supervisor's cgroup once it is empty. If another supervisor has started in the meantime, the
// cgroup now belongs to that supervisor and stays.
func (s *server) removeLeaf() {
	for end := time.Now().Add(leafTime); s.leaf.Remove() != nil && time.Now().Before(end); {
		if unix.Access(s.store.Dir, unix.F_OK) == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// setName sets the name that ps shows (PR_SET_NAME, prctl(2)).
func setName(name string) {
	if p, err := unix.BytePtrFromString(name); err == nil {
		_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(p)), 0, 0, 0)
	}
}
