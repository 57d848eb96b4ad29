// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/collector"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// The launcher applies its settings to one thread. This must be the main thread, whose id is the pid.
func init() { runtime.LockOSThread() }

// clientVar makes the test binary a plugin process, which runs pluginMain.
const clientVar = "OUTRIDER_TEST_CLIENT"

// TestMain also runs the other programs that the tests start, such as the supervisor, the launcher and a plugin. It
// makes the test process a subreaper, so that it adopts the children of a killed supervisor. Otherwise, an init would
// adopt them and reap them at an unknown time.
func TestMain(m *testing.M) {
	testsupport.BeginRoles()
	Main()
	if with := os.Getenv(clientVar); with != "" {
		pluginMain(with)
	}
	if path := os.Getenv(foreignVar); path != "" {
		foreignMain(path)
	}
	if as := os.Getenv(disguiseVar); as != "" {
		disguisedMain(as)
	}
	if len(os.Args) > 2 && os.Args[1] == roleBomb {
		bomb(os.Args[2])
	}
	becomeSubreaper()
	if r, w, err := os.Pipe(); err == nil { // so that the runtime opens its own descriptors before a test counts any
		r.SetReadDeadline(time.Now())
		r.Close()
		w.Close()
	}
	code := m.Run()
	os.RemoveAll(smallDir)
	os.Exit(testsupport.EndRoles(code))
}

// host is an environment for supervisors, clients and tasks. The test fails if anything is left of them at its end.
type host struct {
	t       testing.TB
	dir     string
	store   task.Store
	leaf    cgroup.Group
	support cgroup.Support
	share   string // cgroup above those of the tasks (v1: Nomad's shared cpuset); "" for no cgroups
	made    []string
	idle    time.Duration

	mu      sync.Mutex
	clients []*Client
	events  []Event
	exits   map[string][]*task.Exit
	ids     int
	states  []*task.State
	over    bool
}

const (
	withCgroup    = true
	withoutCgroup = false
)

// newHost returns a host. If cgroups is true, its tasks get cgroups, and the test is skipped if no cgroup can be used.
func newHost(t testing.TB, cgroups bool) *host {
	t.Helper()
	fds := testsupport.Descriptors(t)
	dir, err := os.MkdirTemp("", "ots")
	must.NoError(t, err)
	h := &host{
		t: t, dir: dir, store: task.Store{Dir: filepath.Join(dir, "state", "node")}, leaf: cgroup.Group{Mode: cgroup.None},
		idle: 150 * time.Millisecond, exits: map[string][]*task.Exit{},
	}
	must.NoError(t, os.Chmod(dir, 0o755))
	must.NoError(t, os.MkdirAll(filepath.Join(dir, "alloc", "alloc", "logs"), 0o777))
	reapAsInit(t)
	if cgroups {
		h.planCgroups()
	}
	t.Cleanup(func() {
		h.mu.Lock()
		h.over = true
		clients := h.clients
		h.mu.Unlock()
		if t.Failed() { // clean up, so that this failure does not cause more
			if len(clients) == 0 {
				clients = append(clients, h.client())
			}
			for _, st := range h.states {
				if now, err := h.store.Load(st.ID); err == nil {
					_ = now.Group.Kill()
					_ = unix.Kill(-now.Identity.PID, unix.SIGKILL)
				}
				_ = clients[0].Destroy(ctx(t), st.ID)
			}
		}
		for _, c := range clients {
			c.Close()
		}
		h.nothingLeft()
		// a client that was closed while it started a supervisor briefly recreates the state directory
		testsupport.Eventually(t, "the directory is removed", func() bool { return os.RemoveAll(dir) == nil })
		testsupport.Eventually(t, "all descriptors of the test are closed", func() bool {
			if testsupport.Descriptors(t) <= fds {
				return true
			}
			runtime.GC() // os/exec keeps the pidfd of a process that reapOrphans has reaped
			time.Sleep(10 * time.Millisecond)
			return false
		})
	})
	return h
}

func (h *host) planCgroups() {
	t := h.t
	h.support = cgroup.Detect("")
	parent := fmt.Sprintf("outrider-test-sup-%d-%d", os.Getpid(), time.Now().UnixNano()%1e9)
	switch h.support.Mode {
	case cgroup.V1:
		h.share = filepath.Join(h.support.Root, "cpuset", parent, "share")
		for _, dir := range []string{filepath.Dir(h.share), h.share} {
			h.mkdir(dir)
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				b, err := os.ReadFile(filepath.Join(h.support.Root, "cpuset", file))
				must.NoError(t, err)
				must.NoError(t, os.WriteFile(filepath.Join(dir, file), b, 0))
			}
		}
		h.leaf = cgroup.Leaf(h.support, h.share, "supervisor")
	case cgroup.V2:
		h.share = filepath.Join(h.support.Root, parent, "share.slice")
		h.mkdir(filepath.Dir(h.share))
		h.mkdir(h.share)
		h.leaf = cgroup.Leaf(h.support, filepath.Join(h.share, "x.scope"), "supervisor")
	default:
		os.RemoveAll(h.dir)
		t.Skip("no cgroup can be used: " + h.support.Missing)
	}
	t.Cleanup(func() {
		end := time.Now().Add(30 * time.Second)
		for _, dir := range slices.Backward(h.made) {
			err := unix.Rmdir(dir)
			for ; err == unix.EBUSY && time.Now().Before(end); err = unix.Rmdir(dir) {
				time.Sleep(5 * time.Millisecond)
			}
			if err != nil {
				b, _ := os.ReadFile(dir + "/cgroup.procs")
				t.Errorf("cgroup %s can't be removed: %v; in it: %q", dir, err, b)
			}
		}
	})
}

func (h *host) mkdir(dir string) {
	if err := os.Mkdir(dir, 0o755); err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.made = append(h.made, dir)
	} else if !os.IsExist(err) {
		h.t.Fatal(err)
	}
}

// group plans the task's cgroup, and creates the part that Nomad creates before it calls the driver.
func (h *host) group(alloc, name string) cgroup.Group {
	if h.share == "" {
		return cgroup.Group{Mode: cgroup.None}
	}
	path := h.share
	if h.support.Mode == cgroup.V2 {
		path = filepath.Join(h.share, alloc+"."+name+".scope")
		h.mkdir(path)
	}
	g := cgroup.Plan(h.support, path, alloc, name)
	for _, controller := range []string{"freezer", "memory", "cpu"} {
		if dir := g.V1[controller]; dir != "" {
			h.mkdir(filepath.Dir(dir))
			h.mkdir(dir)
		}
	}
	return g
}

// client returns a client in this process.
func (h *host) client(change ...func(*Config)) *Client {
	cfg := Config{
		Store: h.store, Leaf: h.leaf, Idle: h.idle,
		OnEvent: func(e Event) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.events = append(h.events, e)
		},
		OnExit: func(id string, e *task.Exit) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.exits[id] = append(h.exits[id], e)
		},
		Log: func(format string, args ...any) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if !h.over {
				h.t.Logf("client: "+format, args...)
			}
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	c := NewClient(cfg)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients = append(h.clients, c)
	return c
}

// shell returns a task that runs a shell script in its own allocation.
func (h *host) shell(script string, change ...func(*task.State)) *task.State {
	h.mu.Lock()
	h.ids++
	n := h.ids
	alloc := fmt.Sprintf("alloc%d-%d", os.Getpid(), n) // a test finds a task's processes by this id
	h.mu.Unlock()
	st := &task.State{
		ID: alloc + "/t/" + fmt.Sprintf("%08x", n), AllocID: alloc, Task: "t" + strconv.Itoa(n),
		Command: task.Command{
			Path: "/bin/sh", Args: []string{"-c", script}, Dir: "/", Env: []string{"PATH=/usr/bin:/bin"},
		},
		Output: task.Output{Collector: task.CollectorDriver, AllocDir: filepath.Join(h.dir, "alloc")},
		Group:  h.group(alloc, "t"+strconv.Itoa(n)),
	}
	for _, f := range change {
		f(st)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.states = append(h.states, st)
	return st
}

// launch starts a task.
func (h *host) launch(c *Client, st *task.State) *task.State {
	h.t.Helper()
	got, err := c.Launch(ctx(h.t), st)
	if err != nil {
		h.t.Fatalf("launch of %s: %v", st.ID, err)
	}
	return got
}

func (h *host) destroy(c *Client, id string) {
	h.t.Helper()
	if err := c.Destroy(ctx(h.t), id); err != nil {
		h.t.Errorf("destroy of %s: %v", id, err)
	}
}

// Exit returns how a task ended, or nil while it runs.
func (c *Client) Exit(id string) *task.Exit {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h := c.holds[id]; h != nil {
		return h.exit
	}
	return nil
}

// wait waits for the end of a task, and returns how it ended.
func (h *host) wait(c *Client, id string) *task.Exit {
	h.t.Helper()
	ended, err := c.Exited(id)
	if err != nil {
		h.t.Fatalf("wait for %s: %v", id, err)
	}
	select {
	case <-ended:
		return c.Exit(id)
	case <-time.After(time.Minute):
		h.t.Fatalf("task %s did not end", id)
		return nil
	}
}

// ends waits for the end of a task and checks how it ended. The parameter what becomes the start of an error message.
func (h *host) ends(c *Client, id string, want task.Exit, what ...any) {
	h.t.Helper()
	got := h.wait(c, id)
	if got.Code != want.Code || got.Signal != want.Signal || got.Lost != want.Lost {
		h.t.Errorf("%v: exit %+v, want %+v", what, got, want)
	}
}

// orphaned starts a task, and then kills its supervisor and its plugin.
func (h *host) orphaned(st *task.State) *task.State {
	h.t.Helper()
	first := h.plugin()
	st = first.launch(st)
	h.waitOutput(st, "first")
	h.unwatched(first)
	return st
}

// reported returns the exits of a task for which clients have called OnExit.
func (h *host) reported(id string) []*task.Exit {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.exits[id])
}

// output returns the content of all rotated files of a task's stream ("stdout" or "stderr").
func (h *host) output(st *task.State, stream string) string {
	h.t.Helper()
	var all strings.Builder
	for i := range 1000 {
		b, err := os.ReadFile(filepath.Join(st.Output.AllocDir, "alloc", "logs", fmt.Sprintf("%s.%s.%d", st.Task, stream, i)))
		if err != nil {
			break
		}
		all.Write(b)
	}
	return all.String()
}

// waitOutput waits until a task's stdout contains the text, and returns the whole stdout.
func (h *host) waitOutput(st *task.State, text string) string {
	h.t.Helper()
	var out string
	testsupport.Eventually(h.t, fmt.Sprintf("%q is in the output", text), func() bool {
		out = h.output(st, "stdout")
		return strings.Contains(out, text)
	})
	return out
}

// isServed waits until a client has a supervisor again.
func (h *host) isServed(c *Client) {
	h.t.Helper()
	testsupport.Eventually(h.t, "another supervisor serves", func() bool {
		return len(h.supervisors()) == 1 && c.SupervisorPID(ctx(h.t)) != 0
	})
}

// supervisors returns the pids of the supervisors of this host's store.
func (h *host) supervisors() (pids []int) {
	pids = testsupport.Processes(func(args []string) bool {
		return len(args) == 3 && args[0] == argv0 && args[1] == roleSupervise && args[2] == h.store.Dir
	})
	// a child that a supervisor has forked, but that has not called execve yet, has the same arguments
	return slices.DeleteFunc(pids, func(pid int) bool {
		st, err := task.ReadStat(pid)
		return err != nil || slices.Contains(pids, st.Parent)
	})
}

func (h *host) supervisor() int {
	h.t.Helper()
	pids := h.supervisors()
	// a second supervisor may run for a moment, until it finds that the directory is locked
	for end := time.Now().Add(time.Minute); len(pids) != 1 && time.Now().Before(end); pids = h.supervisors() {
		time.Sleep(time.Millisecond)
	}
	if len(pids) != 1 {
		h.t.Fatalf("%d supervisors run, want 1: %v", len(pids), pids)
	}
	return pids[0]
}

// collector returns the pid of the process that moves the output.
func (h *host) collector() (pid int) {
	h.t.Helper()
	testsupport.Eventually(h.t, "one collector runs", func() bool {
		pids := testsupport.Processes(func(args []string) bool {
			return len(args) == 3 && args[0] == argv0 && args[1] == collector.Role && args[2] == h.store.Dir
		})
		if len(pids) == 1 {
			pid = pids[0]
		}
		return len(pids) == 1
	})
	return pid
}

// kill sends a process a signal that ends it, and returns when the process is dead.
func (h *host) kill(pid int, sig unix.Signal) {
	h.t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	must.NoError(h.t, err)
	defer unix.Close(fd)
	must.NoError(h.t, unix.Kill(pid, sig))
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if n, _ := unix.Poll(p, 1000); n == 1 {
			return
		}
	}
	h.t.Fatalf("process %d did not die", pid)
}

// keep connects to a supervisor. With this client, the supervisor keeps running until the test ends or an upgrade
// closes the connection. keep returns false if the supervisor has already ended.
func (h *host) keep() bool {
	h.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: h.store.Socket(), Net: "unix"})
	if err != nil {
		return false
	}
	h.t.Cleanup(func() { c.Close() })
	must.NoError(h.t, c.SetDeadline(time.Now().Add(time.Minute)))
	ask, err := json.Marshal(&wire.Message[request]{Seq: 1, Body: request{Op: opHello}})
	must.NoError(h.t, err)
	if _, err := c.Write(ask); err != nil {
		return false
	}
	_, err = c.Read(make([]byte, 1)) // a reply shows that the supervisor serves this connection
	return err == nil
}

// background returns the part of a script that starts a background process, a sleeper, which must end with the task.
// With a cgroup, the sleeper leads its own session.
func (h *host) background(mark string) string {
	if h.share == "" {
		return "sleep " + mark + " & "
	}
	return "setsid -f sleep " + mark + "; "
}

// gone checks that no sleeper is left. Without a cgroup, the supervisor does not wait for the death of the processes
// that it kills, so gone waits.
func (h *host) gone(mark, when string) {
	h.t.Helper()
	if h.share == "" {
		testsupport.Eventually(h.t, when+": none is left", func() bool { return len(testsupport.Sleepers(mark)) == 0 })
	}
	left := testsupport.Sleepers(mark)
	test.SliceEmpty(h.t, left, test.Sprintf("%s: %d are left behind", when, len(left)))
	for _, pid := range left {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// nothingLeft checks that the supervisor ends by itself and leaves nothing behind.
func (h *host) nothingLeft() {
	t := h.t
	t.Helper()
	reapOrphans()
	h.eventuallyOr("the idle supervisor ends", func() bool { reapOrphans(); return len(h.supervisors()) == 0 }, func() {
		for _, pid := range h.supervisors() {
			t.Errorf("supervisor %d is left, with %v", pid, tree(h.store.Dir))
			unix.Kill(pid, unix.SIGKILL)
		}
	})
	h.eventuallyOr("no child is left", func() bool { reapOrphans(); return len(children()) == 0 }, func() {
		for _, pid := range children() {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			t.Errorf("process %d is left: %q", pid, strings.ReplaceAll(string(b), "\x00", " "))
			unix.Kill(pid, unix.SIGKILL)
		}
	})
	h.eventuallyOr("the state directory is removed", func() bool { return len(tree(h.store.Dir)) == 0 }, func() {
		t.Errorf("files are left: %v", tree(h.store.Dir))
	})
	for _, dir := range h.leaf.Owned {
		h.eventuallyOr("the supervisor's cgroup is removed", func() bool { _, err := os.Stat(dir); return err != nil },
			func() {
				t.Errorf("cgroup %s is left", dir)
			})
	}
	if h.share != "" && h.support.Unified != "" {
		parent := filepath.Join(h.support.Unified, filepath.Base(filepath.Dir(h.share)))
		if _, err := os.Stat(parent); err == nil {
			t.Errorf("cgroups are left: %v", tree(parent))
		}
	}
}

func (h *host) eventuallyOr(what string, ok func() bool, failed func()) {
	err := testsupport.Poll(time.Minute, func() error {
		if !ok() {
			return errors.New("never happened: " + what)
		}
		return nil
	})
	if err != nil {
		h.t.Error(err)
		failed()
	}
}

// plugin is a client in its own process, which can be killed.
type plugin struct {
	h     *host
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *json.Decoder
}

// pluginOrder is a request to a plugin process, in one line of JSON. The process replies with a pluginAnswer.
type pluginOrder struct {
	Launch *task.State
	Adopt  *task.State
	Wait   string
}

type pluginAnswer struct {
	State *task.State
	Stat  *Status
	Exit  *task.Exit
	Error string
}

type pluginConfig struct {
	Store task.Store
	Leaf  cgroup.Group
	Idle  time.Duration
}

func (h *host) plugin(change ...func(*plugin)) *plugin {
	h.t.Helper()
	with, err := json.Marshal(pluginConfig{h.store, h.leaf, h.idle})
	must.NoError(h.t, err)
	p := &plugin{h: h, cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), clientVar+"="+string(with))
	p.cmd.Stderr = os.Stderr
	for _, f := range change {
		f(p)
	}
	p.stdin, err = p.cmd.StdinPipe()
	must.NoError(h.t, err)
	out, err := p.cmd.StdoutPipe()
	must.NoError(h.t, err)
	p.out = json.NewDecoder(out)
	must.NoError(h.t, p.cmd.Start())
	h.t.Cleanup(p.kill)
	return p
}

func (p *plugin) kill() {
	p.cmd.Process.Kill()
	p.cmd.Wait()
	p.stdin.Close()
}

func (p *plugin) do(o pluginOrder) pluginAnswer {
	p.h.t.Helper()
	must.NoError(p.h.t, json.NewEncoder(p.stdin).Encode(o))
	var a pluginAnswer
	must.NoError(p.h.t, p.out.Decode(&a))
	return a
}

func (p *plugin) launch(st *task.State) *task.State {
	p.h.t.Helper()
	a := p.do(pluginOrder{Launch: st})
	if a.Error != "" {
		p.h.t.Fatal(a.Error)
	}
	return a.State
}

func pluginMain(with string) {
	var cfg pluginConfig
	if err := json.Unmarshal([]byte(with), &cfg); err != nil {
		panic(err)
	}
	c := NewClient(Config{Store: cfg.Store, Leaf: cfg.Leaf, Idle: cfg.Idle,
		OnEvent: func(Event) {}, OnExit: func(string, *task.Exit) {}, Log: func(string, ...any) {}})
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var o pluginOrder
		if in.Decode(&o) != nil {
			os.Exit(0)
		}
		var a pluginAnswer
		var err error
		switch {
		case o.Launch != nil:
			a.State, err = c.Launch(context.Background(), o.Launch)
		case o.Adopt != nil:
			a.Stat, err = c.Adopt(context.Background(), o.Adopt)
		default:
			var ended <-chan struct{}
			if ended, err = c.Exited(o.Wait); err == nil {
				<-ended
				a.Exit = c.Exit(o.Wait)
			}
		}
		if err != nil {
			a.Error = err.Error()
		}
		if out.Encode(a) != nil {
			os.Exit(0)
		}
	}
}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return c
}

// reapOrphans reaps this process's dead children.
func reapOrphans() {
	for _, pid := range children() {
		if st, err := task.ReadStat(pid); err == nil && st.Zombie {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// reapAsInit reaps dead supervisors and the dead tasks that they leave, without the delay of an init, until the test
// ends. Once a task is reaped, processes other than its parent can read its exit status. reapAsInit spares other
// children of the test: unlike supervisors and tasks, they do not lead a session.
func reapAsInit(t testing.TB) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			for _, pid := range children() {
				st, err := task.ReadStat(pid)
				if err == nil && st.Zombie && st.Session == pid {
					_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
				}
			}
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() {
		close(over)
		<-ended
	})
}

// tree returns dir and every path below it, but no files below /sys.
func tree(dir string) (paths []string) {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && (d.IsDir() || !strings.HasPrefix(path, "/sys/")) {
			paths = append(paths, path)
		}
		return nil
	})
	return paths
}

// SupervisorPID returns the pid of the connected supervisor, 0 if none is connected.
func (c *Client) SupervisorPID(ctx context.Context) int {
	l := c.wire.Current()
	if l == nil {
		return 0
	}
	r, err := roundTrip(ctx, l, &request{Op: opHello})
	if err != nil || r.Hello == nil {
		return 0
	}
	return r.Hello.PID
}
