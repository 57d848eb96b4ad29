// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	core "github.com/outrider-dev/outrider/internal/core/driver"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// host is an endpoint that is only looked at.
type host struct {
	endpoint.Endpoint
	probe   func(context.Context) (*endpoint.Facts, error)
	records []*endpoint.Record

	listError error
}

func (h *host) Probe(ctx context.Context) (*endpoint.Facts, error) { return h.probe(ctx) }
func (h *host) List(context.Context) ([]*endpoint.Record, error)   { return h.records, h.listError }
func (h *host) Close() error                                       { return nil }

var facts = &endpoint.Facts{Kind: "ssh", Arch: "arm64", Version: "6.1", CPUs: 4, Memory: 8 << 30, Address: "10.0.0.1",
	More: map[string]string{"hostname": "gpu1"}}

func (h *host) answers() {
	h.probe = func(context.Context) (*endpoint.Facts, error) { return facts, nil }
}

// What a host says goes to Nomad's servers, and may be anything.
func TestAttributes_TakeLittleOfAHostsWords(t *testing.T) {
	h := &host{probe: func(context.Context) (*endpoint.Facts, error) {
		f := &endpoint.Facts{Kind: "ssh", Version: strings.Repeat("6\n", 1<<20), More: map[string]string{
			"a.b": "another's", "health": "as it likes", "motd": strings.Repeat("x", 1<<20)}}
		for i := range 1000 {
			f.More[fmt.Sprintf("z%03d", i)] = "1"
		}
		return f, nil
	}}
	all := attributes(proberOf(map[string]*host{"gpu1": h}, func(*Endpoint) {}).node(t.Context()))
	test.Less(t, 40, len(all))
	test.Eq(t, "healthy", all["endpoint.gpu1.health"])
	test.MapNotContainsKey(t, all, "endpoint.gpu1.a.b")
	for name, value := range all {
		test.Less(t, 500, len([]rune(value)), test.Sprint(name))
		test.StrNotContains(t, value, "\n")
	}
}

// proberOf is a prober of endpoints that are open already.
func proberOf(hosts map[string]*host, edit func(*Endpoint)) *prober {
	c := Config{Endpoints: map[string]Endpoint{}}
	e := NewEndpoints(c, Open, hclog.NewNullLogger())
	for name, h := range hosts {
		one := Endpoint{SSH: &SSH{}}
		edit(&one)
		c.Endpoints[name] = one
		e.opened[name] = h
	}
	return newProber(e)
}

func attributes(n core.Node) map[string]string {
	all := map[string]string{}
	for name, a := range n.Attributes {
		all[name] = a.GoString()
		if s, ok := a.GetString(); ok {
			all[name] = s
		} else if i, ok := a.GetInt(); ok {
			all[name] = fmt.Sprint(i, a.Unit)
		}
	}
	return all
}

func TestAttributes_TellWhatAnEndpointIs(t *testing.T) {
	h := &host{records: []*endpoint.Record{
		{State: endpoint.Running}, {State: endpoint.Released}, {State: endpoint.Starting}, {State: endpoint.Exited},
	}}
	h.answers()
	n := proberOf(map[string]*host{"gpu1": h}, func(e *Endpoint) { e.MaxTasks = 8 }).node(t.Context())
	test.SliceEmpty(t, n.Missing)
	test.Eq(t, map[string]string{
		"endpoint.gpu1.health": "healthy", "endpoint.gpu1.kind": "ssh", "endpoint.gpu1.arch": "arm64",
		"endpoint.gpu1.version": "6.1", "endpoint.gpu1.cpus": "4", "endpoint.gpu1.memory": "8192MiB",
		"endpoint.gpu1.address": "10.0.0.1", "endpoint.gpu1.hostname": "gpu1", "endpoint.gpu1.places_free": "5",
	}, attributes(n))
}

func TestAttributes_OfAnEndpointThatIsAway(t *testing.T) {
	h, well := &host{}, &host{}
	h.answers()
	well.answers()
	p := proberOf(map[string]*host{"a": h, "b": well}, func(e *Endpoint) { e.Address = "203.0.113.1" })
	p.node(t.Context())
	h.probe = func(context.Context) (*endpoint.Facts, error) {
		return nil, errors.New("no route\nto host\x1b[2J" + strings.Repeat("x", 1000))
	}
	n := p.node(t.Context())
	must.SliceLen(t, 1, n.Missing)
	test.StrHasPrefix(t, `endpoint "a" can't be used: no route to host [2Jxxx`, n.Missing[0])
	test.Less(t, 500, len(n.Missing[0]))
	got := attributes(n)
	test.Eq(t, "unhealthy", got["endpoint.a.health"])
	test.StrHasPrefix(t, "no route to host", got["endpoint.a.problem"])
	test.Eq(t, "arm64", got["endpoint.a.arch"], test.Sprint("what it was does not change"))
	test.Eq(t, "203.0.113.1", got["endpoint.a.address"])
	test.Eq(t, "healthy", got["endpoint.b.health"])
	test.MapNotContainsKey(t, got, "endpoint.b.places_free", test.Sprint("without max_tasks"))
}

func TestAttributes_ChangeOnlyWithTheCause(t *testing.T) {
	h := &host{}
	p := proberOf(map[string]*host{"a": h}, func(*Endpoint) {})
	problem := func(text string) string {
		h.probe = func(context.Context) (*endpoint.Facts, error) { return nil, errors.New(text) }
		return attributes(p.node(t.Context()))["endpoint.a.problem"]
	}
	first := problem("read 127.0.0.1:4711: reset (the next attempt is in 1.5s)")
	test.Eq(t, first, problem("read 127.0.0.1:9: reset (the next attempt is in 243ms)"))
	test.Eq(t, first, problem("read 127.0.0.1:9: reset"), test.Sprint("an attempt is made just now"))
	test.Eq(t, "no route to host", problem("no route to host"))
	h.probe = func(context.Context) (*endpoint.Facts, error) {
		return nil, fmt.Errorf("there is no connection yet: %w", context.DeadlineExceeded)
	}
	late := func() string { return attributes(p.node(t.Context()))["endpoint.a.problem"] }
	test.Eq(t, "no route to host", late(), test.Sprint("it tells less"))
	h.answers()
	test.Eq(t, "", late())
	h.probe = func(context.Context) (*endpoint.Facts, error) { return nil, context.DeadlineExceeded }
	test.Eq(t, "context deadline exceeded", late(), test.Sprint("what was is over"))
}

// The tasks are counted for max_tasks alone, and to list many may take longer than a look has.
func TestAttributes_TakeNoListForALifeSign(t *testing.T) {
	h := &host{listError: errors.New("too many")}
	h.answers()
	got := attributes(proberOf(map[string]*host{"a": h}, func(e *Endpoint) { e.MaxTasks = 8 }).node(t.Context()))
	test.Eq(t, "healthy", got["endpoint.a.health"])
	test.MapNotContainsKey(t, got, "endpoint.a.places_free")
}

// A connection may hang in spite of its context. Neither other endpoints nor the driver do.
func TestAttributes_DoNotWaitForAnEndpointThatHangs(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	h, well := &host{}, &host{}
	well.answers()
	probes := make(chan struct{}, 10)
	h.probe = func(context.Context) (*endpoint.Facts, error) {
		probes <- struct{}{}
		<-release
		return facts, nil
	}
	p := proberOf(map[string]*host{"a": h, "b": well}, func(*Endpoint) {})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begun := time.Now()
	for range 2 {
		got := attributes(p.node(ctx))
		test.Eq(t, "unhealthy", got["endpoint.a.health"])
		test.StrContains(t, got["endpoint.a.problem"], "no answer within")
		test.Eq(t, "healthy", got["endpoint.b.health"], test.Sprint(maps.Clone(got)))
	}
	test.Less(t, 3*time.Second, time.Since(begun))
	test.Eq(t, 1, len(probes), test.Sprint("one look at a time"))
}

func TestEndpoints_UnknownNameListsKnownOnes(t *testing.T) {
	e := NewEndpoints(Config{Endpoints: map[string]Endpoint{"b": {}, "a": {}}}, Open, hclog.NewNullLogger())
	_, err := e.Get("c")
	test.EqError(t, err, `endpoint "c" is not known: this node has "a", "b"`)
	_, err = NewEndpoints(Config{}, Open, hclog.NewNullLogger()).Get("c")
	test.EqError(t, err, `endpoint "c" is not known: this node's configuration of the plugin has none`)
}
