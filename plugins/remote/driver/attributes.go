// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/shared/structs"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// probeTime is how long one look at an endpoint may take.
const probeTime = 5 * time.Second

// view is what is known of an endpoint.
type view struct {
	facts *endpoint.Facts // the last ones, nil before the first
	tasks int             // that take a place, below 0 if that is not known
	err   error           // why it can't be used now
}

// prober looks at all endpoints.
type prober struct {
	endpoints *Endpoints

	mu    sync.Mutex
	views map[string]view
	busy  map[string]bool   // a look is under way
	words map[string]string // what was told last, of an endpoint or the API
}

func newProber(e *Endpoints) *prober {
	return &prober{endpoints: e, views: map[string]view{}, busy: map[string]bool{}, words: map[string]string{}}
}

// node is the state of all endpoints. One that can't be used does not make the driver
// unhealthy, since tasks on others can.
func (p *prober) node(ctx context.Context) core.Node {
	views := p.look(ctx)
	n := core.Node{Attributes: map[string]*structs.Attribute{}}
	for _, name := range p.endpoints.Names() {
		v := views[name]
		c := p.endpoints.config.Endpoints[name]
		problem := ""
		if v.err != nil {
			problem = p.problem(name, v.err)
			n.Missing = append(n.Missing, fmt.Sprintf("endpoint %q can't be used: %s", name, problem))
		} else {
			p.forget(name)
		}
		v.attributes("endpoint."+name+".", c, problem, n.Attributes)
	}
	return n
}

// look probes all endpoints at the same time. It does not wait for one that takes longer
// than its time, whatever that one does with its context.
func (p *prober) look(ctx context.Context) map[string]view {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	var all sync.WaitGroup
	done := make(chan struct{})
	for _, name := range p.endpoints.Names() {
		p.mu.Lock()
		busy := p.busy[name]
		p.busy[name] = true
		p.mu.Unlock()
		if busy {
			continue
		}
		all.Go(func() {
			facts, tasks, err := p.one(ctx, name)
			p.mu.Lock()
			defer p.mu.Unlock()
			v := p.views[name]
			p.views[name] = view{facts: cmp.Or(facts, v.facts), tasks: tasks, err: err}
			p.busy[name] = false
		})
	}
	go func() {
		all.Wait()
		close(done)
		cancel()
	}()
	select {
	case <-done:
	case <-ctx.Done():
		select {
		case <-done: // each has been told to end, and most do
		case <-time.After(200 * time.Millisecond):
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := map[string]view{}
	for _, name := range p.endpoints.Names() {
		v := p.views[name]
		if p.busy[name] {
			v.err = errNoAnswer
		}
		now[name] = v
	}
	return now
}

func (p *prober) one(ctx context.Context, name string) (*endpoint.Facts, int, error) {
	e, err := p.endpoints.Get(name)
	if err != nil {
		return nil, 0, err
	}
	facts, err := e.Probe(ctx)
	if err != nil || p.endpoints.config.Endpoints[name].MaxTasks == 0 {
		return facts, -1, err
	}
	all, err := e.List(ctx)
	if err != nil { // a list takes longer than the question whether the endpoint answers
		return facts, -1, nil
	}
	live := slices.DeleteFunc(all, func(r *endpoint.Record) bool { return r.State == endpoint.Exited })
	return facts, len(live), nil
}

// The limits of what an endpoint says: attributes that it adds, and characters of each.
const (
	mostMore = 20
	mostText = 400
)

// attributes adds those of an endpoint.
func (v view) attributes(prefix string, c Endpoint, problem string, all map[string]*structs.Attribute) {
	text := func(name, value string) {
		if value != "" {
			all[prefix+name] = structs.NewStringAttribute(plain.Line(value, mostText))
		}
	}
	number := func(name string, value int64, unit string) {
		all[prefix+name] = structs.NewIntAttribute(value, unit)
	}
	if f := v.facts; f != nil { // its own words first: they change none of ours
		for _, name := range slices.Sorted(maps.Keys(f.More))[:min(len(f.More), mostMore)] {
			if endpointName.MatchString(name) {
				text(name, f.More[name])
			}
		}
	}
	text("kind", c.kind())
	text("health", "healthy")
	if v.err != nil {
		text("health", "unhealthy")
		text("problem", problem)
	}
	if f := v.facts; f != nil {
		text("kind", f.Kind)
		text("arch", f.Arch)
		text("version", f.Version)
		text("address", cmp.Or(c.Address, f.Address, c.Reached()))
		text("no_limits", f.Limits)
		number("cpus", int64(f.CPUs), "")
		number("memory", f.Memory>>20, structs.UnitMiB)
	}
	if c.MaxTasks > 0 && v.err == nil && v.tasks >= 0 {
		number("places_free", int64(max(0, c.MaxTasks-v.tasks)), "")
	}
}

// number is what differs between two errors of the same cause: a port, a time.
var number = regexp.MustCompile(`[0-9.]+(ms|µs|s|m|h)?`)

// problem returns the text of what is wrong with an endpoint. A look that ran out of time tells less than one before.
func (p *prober) problem(name string, err error) string {
	of := "endpoint " + name
	p.mu.Lock()
	last := p.words[of]
	p.mu.Unlock()
	if last != "" && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNoAnswer)) {
		return last
	}
	return p.word(of, waiting.ReplaceAllString(err.Error(), ""))
}

// forget is for an endpoint that can be used.
func (p *prober) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.words, "endpoint "+name)
}

// waiting is what the error of a connection ends with while no attempt is made.
var waiting = regexp.MustCompile(` \(the next attempt is in [^)]*\)$`)

var errNoAnswer = fmt.Errorf("no answer within %s", probeTime)

// word returns the text about something for a person. It returns the last one again if only numbers
// in it have changed, since each change of an attribute goes to Nomad's servers.
func (p *prober) word(of, now string) string {
	now = plain.Line(now, mostText)
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.words[of]; number.ReplaceAllString(last, "#") != number.ReplaceAllString(now, "#") {
		p.words[of] = now
	}
	return p.words[of]
}
