// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"

	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
)

// ownership is the state of the model: the owner of the run after a sequence of calls.
type ownership struct {
	owner    string // the allocation that owns the run
	released bool
	way      int // the number of the connection that may change the run; 0: none
}

// call is a request of a node to the host.
type call struct {
	way   int
	what  string // claim, resume, take, release, change or exec
	alloc string // the allocation that claims or owns the run
	from  string // the allocation that the run is taken from
	lines string // the line that exec writes
}

// outcome is what a node knows about a call.
type outcome int

const (
	unknown outcome = iota // the connection was lost: the call may have been executed
	done
	refused
)

// step returns the possible states after a call with this outcome. It returns none if the outcome itself is impossible.
func (o ownership) step(c call, got outcome) []any {
	allowed, next := o.way == c.way, o
	switch c.what {
	case "exec": // needs only the connection, and names no allocation
	case "change":
		allowed = allowed && o.owner == c.alloc
	case "release":
		allowed = allowed && o.owner == c.alloc
		next.released, next.way = true, 0
	default:
		allowed = o.released || c.what == "resume" && o.owner == c.alloc || c.what == "take" && o.owner == c.from
		next = ownership{owner: c.alloc, way: c.way}
	}
	switch {
	case got == unknown && allowed:
		return []any{o, next}
	case got == unknown || got == refused && !allowed:
		return []any{o}
	case got == done && allowed:
		return []any{next}
	}
	return nil
}

// way is one connection of a node to the host. Each way has a separate network link, and a separate program that serves
// it on the host.
type way struct {
	*host.Link
	number int
	host   *host.Host
	cut    *sshdtest.Link // the network link, which no other connection uses

	running   sync.WaitGroup // the calls in progress
	recovered bool           // the program on the host has recovered the task
	until     int            // the round in which the cut link is restored; 0: not cut

	mu   sync.Mutex
	lost []porcupine.Operation // calls with unknown outcome
}

// isShim reports whether a process with these arguments is the connection's program on the host.
func (w *way) isShim(args []string) bool {
	return len(args) == 3 && args[1] == "outrider-shim" && strings.Contains(args[2], fmt.Sprintf("%q", w.name()))
}

func (w *way) name() string { return fmt.Sprintf("WAY_%d", w.number) }

// partition is a host with one run, and the history of the nodes' calls for that run.
type partition struct {
	t      *testing.T
	server *sshdtest.Server
	dir    string
	run    struct { // from the run's record on the host
		TaskID string `json:"task_id"`
		Key    string
		Hash   string
	}
	written string // the file that exec writes to

	begun  time.Time
	number atomic.Int64 // the last number given to a connection, an allocation or a line

	mu      sync.Mutex
	history []porcupine.Operation
	allocs  []string
	owner   string // the last known owner
}

// connect returns a new connection of a node.
func (p *partition) connect() *way {
	w := &way{number: int(p.number.Add(1)), cut: p.server.Link()}
	hop := ssh.Hop{Host: p.server.Host, Port: w.cut.Port, User: p.server.User, HostKeys: []string{p.server.HostKey}}
	w.host = host.New(host.Config{
		Name: "box", SSH: ssh.Config{Hop: hop, KeyFile: p.server.KeyFile},
		Programs: map[string]string{runtime.GOARCH: "/proc/self/exe"},
		Options:  shim.Options{Dir: p.dir, DeniedEnvvars: []string{w.name()}},
		Event:    func(*drivers.TaskEvent) {},
	})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	link, err := w.host.Connect(ctx)
	must.NoError(p.t, err)
	w.Link = link
	return w
}

// end closes a connection and waits until its program on the host has ended. From then on, its lost calls cannot be
// executed, so end adds them to the history.
func (p *partition) end(w *way) {
	w.host.Close()
	w.running.Wait()
	testsupport.Eventually(p.t, "the program on the host ends", func() bool {
		return len(testsupport.Processes(w.isShim)) == 0
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, op := range w.lost {
		op.Return = int64(time.Since(p.begun))
		p.history = append(p.history, op)
	}
	w.lost = nil
}

// ask makes a call, and adds it to the history when the response arrives. If no response arrives, the outcome is
// unknown, and the method end adds the call.
func (p *partition) ask(w *way, c call) outcome {
	op := porcupine.Operation{Input: c, Call: int64(time.Since(p.begun))}
	got, err := p.send(w, c)
	if got == unknown {
		p.t.Logf("%+v: %v", c, err)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lost = append(w.lost, op)
		return got
	}
	op.Return, op.Output = int64(time.Since(p.begun)), got
	p.mu.Lock()
	defer p.mu.Unlock()
	p.history = append(p.history, op)
	if got == done && slices.Contains([]string{"claim", "resume", "take"}, c.what) {
		p.owner = c.alloc
	}
	return got
}

func (p *partition) send(w *way, c call) (outcome, error) {
	change := &shim.ChangeRequest{TaskID: p.run.TaskID, AllocID: c.alloc, State: shim.Running}
	var err error
	switch c.what {
	case "release":
		change.State = shim.Released
		fallthrough
	case "change":
		_, err = shim.Change.On(context.Background(), w.Shim, change)
	case "exec":
		var result *drivers.ExecTaskResult
		script := []string{"/bin/sh", "-c", "echo " + c.lines + " >> " + p.written}
		result, err = w.Driver.ExecTask(p.run.TaskID, script, time.Minute)
		if err == nil && !result.ExitResult.Successful() {
			err = fmt.Errorf("the command failed: %+v", result.ExitResult)
		}
	default:
		request := &shim.ClaimRequest{
			Key: p.run.Key, Hash: p.run.Hash, TaskID: p.run.TaskID, Reattach: true,
			Owner:  shim.Owner{AllocID: c.alloc, NodeID: w.name()},
			Resume: c.what == "resume", Gone: []string{c.from}, Alive: p.alive(c.from),
		}
		var reply *shim.ClaimReply
		reply, err = shim.Claim.On(context.Background(), w.Shim, request)
		if err == nil && reply.Verdict == shim.Held {
			return refused, nil
		}
		if err == nil && reply.Verdict != shim.Have {
			err = fmt.Errorf("the verdict is %q", reply.Verdict)
		}
	}
	switch {
	case err == nil:
		return done, nil
	case status.Code(err) == codes.FailedPrecondition:
		return refused, nil
	}
	return unknown, err
}

// alive returns all allocations except the one in but. A claim lists them as alive, so that the host does not consider
// a disconnected owner gone.
func (p *partition) alive(but string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.allocs), func(a string) bool { return a == but })
}

// soFar returns the number of calls in the history, and the last known owner.
func (p *partition) soFar() (calls int, owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.history), p.owner
}

// newAlloc returns the id of a new allocation.
func (p *partition) newAlloc() string {
	alloc := fmt.Sprintf("alloc-%d", p.number.Add(1))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allocs = append(p.allocs, alloc)
	return alloc
}

// member is one of the nodes.
type member struct {
	*partition
	way   *way
	stale []*way // connections whose link is cut
	alloc string
}

var kinds = []string{"claim", "resume", "take", "take", "release", "release", "change", "change", "exec", "exec"}

// turn makes a random call, and sometimes breaks the connection before or during the call.
func (m *member) turn(round int, others []string) {
	m.stale = slices.DeleteFunc(m.stale, func(w *way) bool {
		if w.until > round {
			return false
		}
		w.cut.Restore() // data sent before the cut arrives now
		w.running.Wait()
		m.does(w, m.choose(w, others)) // an old connection may take the run back
		m.end(w)
		return true
	})
	w := m.way
	c := m.choose(w, others)
	strike := faults[rand.N(len(faults))]
	if rand.N(8) > 0 {
		strike = nil
	}
	before := rand.N(2) == 0
	if strike != nil && before {
		strike(m, w)
	}
	answered := make(chan outcome, 1)
	w.running.Go(func() { answered <- m.does(w, c) })
	if strike != nil && !before {
		time.Sleep(time.Duration(rand.N(int64(3 * time.Millisecond)))) // so that the fault can hit any step of the call
		strike(m, w)
	}
	if w.until > 0 || <-answered != refused { // on a cut link, no response will come
		m.alloc = c.alloc
	}
	switch {
	case strike == nil:
		return
	case w.until == 0:
		m.end(w)
	default:
		w.until += round
		m.stale = append(m.stale, w)
	}
	m.way = m.connect()
}

// choose returns a random call for a connection. A call that takes the run takes it from one of the allocations in
// others.
func (m *member) choose(w *way, others []string) call {
	c := call{way: w.number, what: kinds[rand.N(len(kinds))], alloc: m.alloc}
	switch c.what {
	case "take":
		c.from = others[rand.N(len(others))]
		fallthrough
	case "claim":
		c.alloc = m.newAlloc()
	case "exec":
		c.lines = strconv.Itoa(int(m.number.Add(1)))
	}
	return c
}

// does makes a call. Before the first exec on a connection, it resumes the run, because the program on the host can
// only run commands in a task that it has recovered.
func (m *member) does(w *way, c call) outcome {
	if c.what == "exec" && !w.recovered {
		resume := call{way: w.number, what: "resume", alloc: c.alloc}
		if got := m.ask(w, resume); got != done {
			return got
		}
		w.recovered = true
	}
	return m.ask(w, c)
}

// faults break a connection: they kill the program on the host, kill its SSH server process, or cut the link.
var faults = []func(*member, *way){
	func(m *member, w *way) { m.kill(w, false) },
	func(m *member, w *way) { m.kill(w, true) },
	func(_ *member, w *way) {
		w.until = 1 + rand.N(5)
		w.cut.Cut()
	},
}

// kill kills the program on the host or, if server is set, the SSH server process that started the program.
func (m *member) kill(w *way, server bool) {
	shims := testsupport.Processes(w.isShim)
	must.Len(m.t, 1, shims)
	pid := shims[0]
	if server {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		must.NoError(m.t, err)
		pid, err = strconv.Atoi(strings.Fields(string(text))[3]) // the parent
		must.NoError(m.t, err)
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		must.NoError(m.t, err)
		must.StrHasPrefix(m.t, "sshd", string(name))
	}
	must.NoError(m.t, unix.Kill(pid, unix.SIGKILL))
}

// 500 calls of three nodes have a linearizable history, although links are cut and programs on the host are killed.
func TestRun_HistoryIsLinearizableThroughPartitions(t *testing.T) {
	server := sshdtest.Start(t)
	dir, mark := newDir(t), newMark(t)
	p := &partition{t: t, server: server, dir: dir, written: filepath.Join(dir, "written"), begun: time.Now()}
	must.NoError(t, os.WriteFile(p.written, nil, 0o600)) // must exist even if no command runs
	first := newPlugin(t, server.Endpoint("box", dir, server.Port), "http://127.0.0.1:1")
	task := newTask(t, "job", map[string]any{"command": "sleep", "args": []any{mark}})
	_, _, err := first.StartTask(task)
	must.NoError(t, err)
	testsupport.WaitSleepers(t, mark, 1)
	pid := testsupport.Sleepers(mark)
	must.NoError(t, first.Close())
	records, err := filepath.Glob(filepath.Join(dir, "runs", "*.json"))
	must.NoError(t, err)
	must.Len(t, 1, records)
	text, err := os.ReadFile(records[0])
	must.NoError(t, err)
	must.NoError(t, json.Unmarshal(text, &p.run))
	p.allocs, p.owner = []string{task.AllocID}, task.AllocID

	calls := 500
	if testing.Short() {
		calls = 60
	}
	var members []*member
	for range 3 {
		members = append(members, &member{partition: p, way: p.connect(), alloc: task.AllocID})
	}
	for round := 0; !t.Failed(); round++ {
		n, owner := p.soFar()
		if n >= calls {
			break
		}
		var all sync.WaitGroup
		var allocs []string // the allocations of the members and of the last owner, before this round
		for _, m := range members {
			allocs = append(allocs, m.alloc, owner)
		}
		for _, m := range members {
			all.Go(func() { m.turn(round, allocs) })
		}
		all.Wait()
	}
	for _, m := range members {
		for _, w := range append(m.stale, m.way) {
			w.cut.Restore()
			p.end(w)
		}
	}

	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{ownership{owner: task.AllocID}} },
		Step: func(state, input, output any) []any {
			got, _ := output.(outcome) // a call without an output has the outcome unknown
			return state.(ownership).step(input.(call), got)
		},
	}
	result := porcupine.CheckOperationsTimeout(model.ToModel(), p.history, 5*time.Minute)
	counts := map[outcome]int{}
	want := map[string]outcome{} // by line: the outcome of the exec that writes it
	for _, op := range p.history {
		got, _ := op.Output.(outcome)
		counts[got]++
		want[op.Input.(call).lines] = got
	}
	t.Logf("%d calls were executed, %d refused, %d unknown, by %d connections and allocations",
		counts[done], counts[refused], counts[unknown], p.number.Load())
	must.Eq(t, porcupine.Ok, result, must.Sprint("the history is not linearizable: ", p.history))
	test.Positive(t, counts[refused])
	if !testing.Short() { // in a short test, all calls may get a response
		test.Positive(t, counts[unknown])
	}

	written, err := os.ReadFile(p.written)
	must.NoError(t, err)
	lines := map[string]int{}
	for _, line := range strings.Fields(string(written)) {
		lines[line]++
	}
	delete(want, "")
	for line, got := range want {
		n := lines[line]
		ok := got == done && n == 1 || got == refused && n == 0 || got == unknown && n <= 1
		test.True(t, ok, test.Sprintf("a command with outcome %d was run %d times", got, n))
	}
	must.Eq(t, pid, testsupport.Sleepers(mark), must.Sprint("the process changed"))

	last := p.connect()
	defer last.host.Close()
	owner := p.newAlloc()
	reply, err := shim.Claim.On(t.Context(), last.Shim, &shim.ClaimRequest{
		Key: p.run.Key, Hash: p.run.Hash, TaskID: p.run.TaskID, Reattach: true, Owner: shim.Owner{AllocID: owner},
		Gone: p.alive(owner), // all except the new owner
	})
	must.NoError(t, err)
	must.Eq(t, shim.Have, reply.Verdict)
	_, err = shim.Change.On(t.Context(), last.Shim,
		&shim.ChangeRequest{TaskID: p.run.TaskID, AllocID: owner, State: shim.Ending})
	must.NoError(t, err)
	must.SliceEmpty(t, testsupport.Sleepers(mark))
}
