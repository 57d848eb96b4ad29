// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package sshhost_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/engine"
	"github.com/outrider-dev/outrider/plugins/remote/sshhost"
)

// nomad says what allocations are; a stop is a drain, as a rule.
type nomad struct {
	mu   sync.Mutex
	lost map[string]bool
	over map[string]bool
	stop bool // every stop is a person's
}

func (n *nomad) Alloc(_ context.Context, _ engine.Asker, o endpoint.Owner) engine.Alloc {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lost[o.Alloc] || n.over[o.Alloc] {
		return engine.Alloc{State: engine.Ended, Lost: n.lost[o.Alloc]}
	}
	return engine.Alloc{State: engine.Alive, Wanted: true, Job: endpoint.Service}
}

func (n *nomad) Why(context.Context, engine.Asker, engine.StopOptions) engine.Decision {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stop {
		return engine.Decision{Action: engine.Stop, Reason: "the job is stopped"}
	}
	return engine.Decision{Action: engine.Release, Reason: "the node is drained"}
}

func (n *nomad) Orphan(context.Context, *endpoint.Record, func(string) bool) (bool, string) {
	return false, ""
}

// plugin is one on a node, with a link to the machine.
type plugin struct {
	*engine.Engine
	m     *machine
	host  *sshhost.Host
	spec  *endpoint.Spec
	alloc string
	dir   string // the allocation's
	task  driver.Task

	mu     sync.Mutex
	down   bool
	events []string
}

var errDown = errors.New("the link is down")

func newPlugin(t *testing.T, m *machine, n *nomad, alloc, script string) *plugin {
	p := &plugin{m: m, alloc: alloc, spec: shell(script)}
	p.spec.MaxFiles, p.spec.MaxSize = 1000, 1<<20
	p.connect(t, n, func(context.Context) (net.Conn, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.down {
			return nil, errDown
		}
		return m.dial(p.host)
	})
	return p
}

// connect makes the plugin's engine.
func (p *plugin) connect(t *testing.T, n *nomad, dial func(context.Context) (net.Conn, error)) {
	p.dir = filepath.Join(t.TempDir(), p.alloc)
	must.NoError(t, os.MkdirAll(filepath.Join(p.dir, "alloc", "logs"), 0o777))
	p.host = sshhost.New(sshhost.Config{Lease: testLease, Dial: dial})
	p.Engine = engine.New(engine.Options{
		Endpoint: func(string) (endpoint.Endpoint, error) { return p.host, nil },
		Task: func(context.Context, *driver.Start) (*engine.Task, error) {
			return &engine.Task{Endpoint: "host", Spec: p.spec, Kill: endpoint.Kill{Signal: "SIGTERM"}}, nil
		},
		Cluster: n, Lease: testLease, Logger: hclog.NewNullLogger(),
	})
	t.Cleanup(func() {
		_ = p.Close()
		_ = p.host.Close()
	})
}

func (p *plugin) id() string { return p.alloc + "/web/1" }

func (p *plugin) config() *drivers.TaskConfig {
	return &drivers.TaskConfig{
		ID: p.id(), AllocID: p.alloc, NodeID: "node of " + p.alloc, Name: "web", JobID: "job", TaskGroupName: "group",
		AllocDir: p.dir, Env: map[string]string{"NOMAD_ALLOC_INDEX": "0"},
	}
}

func (p *plugin) start(t *testing.T) {
	t.Helper()
	var err error
	p.task, err = p.Start(t.Context(), &driver.Start{Event: p.event, Task: p.config()})
	must.NoError(t, err)
}

func (p *plugin) event(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, fmt.Sprintf(format, args...))
}

func (p *plugin) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.events, "\n")
}

// cutOff takes the link down, and up.
func (p *plugin) cutOff(t *testing.T, down bool) {
	p.mu.Lock()
	p.down = down
	p.mu.Unlock()
	if down {
		p.m.cut(t, p.host)
	}
}

func (p *plugin) output(t *testing.T, stream string) []byte {
	t.Helper()
	dir := filepath.Join(p.dir, "alloc", "logs")
	known, err := logs.Indexes(dir, "web."+stream)
	must.NoError(t, err)
	var all []byte
	for _, i := range known {
		b, err := os.ReadFile(filepath.Join(dir, "web."+stream+"."+strconv.FormatInt(i, 10)))
		must.NoError(t, err)
		all = append(all, b...)
	}
	return all
}

// A node that was lost comes back: its agent goes on, or was restarted and reached the host at once or later. Nothing
// that it does touches what another one owns by then.
func TestEngine_ThatReturnsTouchesNothingOfAnothers(t *testing.T) {
	m := newMachine(t, os.Geteuid())
	n := &nomad{lost: map[string]bool{}, over: map[string]bool{}}
	const script = `trap 'echo signalled' HUP INT TERM USR1; echo ready; while :; do sleep 0.02; done`
	a := newPlugin(t, m, n, "alloc-a", script)
	a.start(t)
	t.Cleanup(func() {
		h, ctx := m.host(), context.Background()
		list, err := h.List(ctx)
		must.NoError(t, err)
		must.Len(t, 1, list)
		r, err := h.Stop(ctx, list[0].Ref(), "SIGKILL", 0, "end of the test")
		must.NoError(t, err)
		must.NoError(t, h.Remove(ctx, r.Ref()))
		_ = h.Close()
	})
	saved, err := a.task.(driver.Saver).Saved()
	must.NoError(t, err)
	a.cutOff(t, true)
	n.mu.Lock()
	n.lost[a.alloc] = true
	n.mu.Unlock()
	late := newPlugin(t, m, n, a.alloc, script) // the plugin of the agent's next start
	late.down = true
	task, err := late.Recover(t.Context(), late.config(), saved, late.event)
	must.NoError(t, err)

	b := newPlugin(t, m, n, "alloc-b", script)
	b.start(t)
	must.StrContains(t, b.said(), "Took over the running object")
	list, err := b.host.List(t.Context())
	must.NoError(t, err)
	must.Len(t, 1, list)
	was := list[0]

	prompt := newPlugin(t, m, n, a.alloc, script)
	_, err = prompt.Recover(t.Context(), prompt.config(), saved, prompt.event)
	must.ErrorContains(t, err, "allocation alloc-b of node node of  has taken it over")
	must.NoError(t, prompt.Destroy(t.Context(), prompt.id()))
	for p, task := range map[*plugin]driver.Task{a: a.task, late: task} {
		p.cutOff(t, false)
		testsupport.Eventually(t, p.alloc+" learns", func() bool {
			return strings.Contains(p.said(), "Not this allocation's task any more")
		})
		test.Error(t, task.Signal(t.Context(), "SIGUSR1"))
		must.NoError(t, task.(driver.Stopper).Stop(t.Context(), time.Second, ""))
		must.NoError(t, p.Destroy(t.Context(), p.id()))
	}
	for _, p := range []*plugin{a, late, prompt} {
		reaped, err := p.Reap(t.Context(), "host", false)
		must.NoError(t, err)
		for _, d := range reaped {
			test.False(t, d.Gone, test.Sprint(d.Reason))
		}
	}

	now, err := b.host.Get(t.Context(), was.Name)
	must.NoError(t, err)
	test.Eq(t, was.Ref(), now.Ref())
	test.Eq(t, endpoint.Running, now.State)
	test.Eq(t, was.PID, now.PID)
	out, err := os.ReadFile(filepath.Join(m.dir, "objects", was.Name, "alloc/logs/web.stdout.0"))
	must.NoError(t, err)
	test.Eq(t, "ready\n", string(out), test.Sprint("it got a signal"))
}

// A counter prints a million lines to each stream, is handed over five times by a drain and five times
// by the loss of the node's link, of which one is shorter than the lease, too.
func TestEngine_CopiesEachLineOnceOverHandOvers(t *testing.T) {
	const lines = 1_000_000
	m := newMachine(t, os.Geteuid())
	n := &nomad{lost: map[string]bool{}, over: map[string]bool{}}
	last := filepath.Join(t.TempDir(), "last") // is there after the last hand-over
	script := `n=0; while [ $n -lt 100 ]; do seq $((n*10000)) $((n*10000+9999)) | tee /dev/stderr; n=$((n+1)); ` +
		`while [ $n = 99 ] && ! [ -e ` + last + ` ]; do sleep 0.05; done; sleep 0.05; done; exit 7`
	var all []*plugin
	p := newPlugin(t, m, n, "alloc-0", script)
	p.start(t)
	for i := range 10 {
		all = append(all, p)
		time.Sleep(300 * time.Millisecond)
		if i == 3 { // a short partition
			p.cutOff(t, true)
			time.Sleep(300 * time.Millisecond)
			p.cutOff(t, false)
			time.Sleep(300 * time.Millisecond)
		}
		next := newPlugin(t, m, n, "alloc-"+strconv.Itoa(i+1), script)
		if i%2 == 0 {
			must.NoError(t, p.task.(driver.Stopper).Stop(t.Context(), time.Second, ""))
			must.Eq(t, 0, p.task.Exit().Code)
			n.mu.Lock()
			n.over[p.alloc] = true
			n.mu.Unlock()
			next.start(t)
		} else {
			p.cutOff(t, true)
			n.mu.Lock()
			n.lost[p.alloc] = true
			n.mu.Unlock()
			next.start(t)
			p.cutOff(t, false) // it comes back, and learns
			testsupport.Eventually(t, p.alloc+" learns", func() bool {
				return strings.Contains(p.said(), "Not this allocation's task any more")
			})
		}
		must.StrContains(t, next.said(), "Took over the running object")
		p = next
	}
	all = append(all, p)
	must.NoError(t, os.WriteFile(last, nil, 0o644))
	select {
	case <-p.task.Ended():
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	must.Eq(t, 7, p.task.Exit().Code)
	p.task.(driver.Teller).Told(t.Context())
	must.NoError(t, p.Destroy(t.Context(), p.id()))
	for _, stream := range []string{"stdout", "stderr"} {
		var text []byte
		for _, p := range all {
			text = append(text, p.output(t, stream)...)
		}
		i := 0
		for line := range bytes.Lines(text) {
			if string(line) != strconv.Itoa(i)+"\n" {
				t.Fatalf("line %d of %s is %q", i, stream, line)
			}
			i++
		}
		test.Eq(t, lines, i, test.Sprint(stream))
	}
	for _, p := range all {
		test.StrNotContains(t, p.said(), "gap")
		test.StrNotContains(t, p.said(), "twice")
	}
}
