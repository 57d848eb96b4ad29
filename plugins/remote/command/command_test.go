// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/driver"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint/memory"
)

const agentFile = `plugin "nomad-driver-remote" {
  config {
    endpoint "mem" {
      max_tasks = 4
      docker {}
    }
    endpoint "away" {
      docker { host = "unix:///nowhere/docker.sock" }
    }
    api { address = "" }
    reap_after = "1s"
  }
}
`

const (
	lease   = time.Hour
	allocA  = "aaaaaaaa-0000-0000-0000-000000000000"
	allocB  = "bbbbbbbb-0000-0000-0000-000000000000"
	another = "cccccccc-0000-0000-0000-000000000000"
)

// place has commands run against an endpoint in memory.
type place struct {
	*testing.T
	store *memory.Store
	node  *memory.Client
	path  string
}

func newPlace(t *testing.T) *place {
	p := &place{T: t, store: memory.New(lease), path: filepath.Join(t.TempDir(), "agent.hcl")}
	p.node = p.store.Connect()
	must.NoError(t, os.WriteFile(p.path, []byte(agentFile), 0o600))
	return p
}

// connect is driver.Open, but for the one endpoint with max_tasks.
func (p *place) connect(e driver.Endpoint, lease time.Duration) (endpoint.Endpoint, error) {
	if e.MaxTasks > 0 {
		return p.store.Connect(), nil
	}
	return driver.Open(e, lease)
}

// run types a command, and answers what it asks.
func (p *place) run(answer string, argv ...string) (out, said string, err error) {
	p.Helper()
	var stdout, stderr bytes.Buffer
	s := &session{in: strings.NewReader(answer), out: &stdout, err: &stderr, connect: p.connect}
	for _, c := range []command{listCommand, adoptCommand, releaseCommand, stopCommand, gcCommand, checkCommand} {
		if c.name == argv[0] {
			err = c.with(p.Context(), s, append([]string{"-config", p.path}, argv[1:]...))
			return stdout.String(), stderr.String(), err
		}
	}
	p.Fatalf("no command %s", argv[0])
	return
}

// start runs an object that an allocation owns.
func (p *place) start(job string) *endpoint.Record {
	p.Helper()
	key := endpoint.Key{Region: "global", Namespace: "default", Job: job, Group: "g", Task: "t"}
	r := &endpoint.Record{
		Name: key.Name("0123456789ab"), Key: key, Hash: "0123456789ab",
		Kill:  endpoint.Kill{Signal: "SIGTERM", Grace: time.Second},
		Owner: endpoint.Owner{Alloc: allocA, Node: "node-1", TaskID: allocA + "/t/1"}, Reason: "started by Nomad",
	}
	spec := &endpoint.Spec{Task: "t"}
	must.NoError(p, p.node.Create(p.Context(), r))
	ref := endpoint.Ref{Name: r.Name, Epoch: 1}
	must.NoError(p, p.node.Prepare(p.Context(), ref, spec, func(string) {}))
	r, err := p.node.Start(p.Context(), ref, spec)
	must.NoError(p, err)
	return r
}

func (p *place) get(name string) *endpoint.Record {
	p.Helper()
	r, err := p.node.Get(p.Context(), name)
	must.NoError(p, err)
	return r
}

func TestList_ShowsWhoseTasksAre(t *testing.T) {
	p := newPlace(t)
	r := p.start("web")
	other := p.start("db")
	must.NoError(t, p.node.Release(t.Context(), other.Ref(), endpoint.Mutable{}, "the node is drained"))
	out, _, err := p.run("", "list")
	must.NoError(t, err)
	for _, want := range []string{
		"endpoint away: can't be used: ", "endpoint mem: 2 tasks, at most 4\n",
		"\n  " + r.Name + "\n", "    task    global/default/web.g[0]/t\n", "    state   running for 0 s\n",
		"    owner   epoch 1, allocation aaaaaaaa of node node-1, whose lease lasts another 59 min\n",
		"    reason  started by Nomad\n", "    gc      leaves it: it has an owner\n",
		"    state   released for 0 s\n", "    owner   epoch 1, none: given up by allocation aaaaaaaa of node node-1\n",
		"    reason  the node is drained\n", "    gc      leaves it: it has had no owner for 0s only\n",
	} {
		test.StrContains(t, out, want)
	}
	out, _, err = p.run("", "list", "-json", "mem")
	must.NoError(t, err)
	var all []listed
	must.NoError(t, json.Unmarshal([]byte(out), &all))
	must.SliceLen(t, 1, all)
	must.SliceLen(t, 2, all[0].Tasks)
	test.Eq(t, allocA, all[0].Tasks[0].Owner.Alloc)
	_, _, err = p.run("", "list", "nowhere")
	test.EqError(t, err, `endpoint "nowhere" is not known: this node has "away", "mem"`)
}

func TestRelease_FencesTheOwner(t *testing.T) {
	p := newPlace(t)
	r := p.start("web")
	out, said, err := p.run("y\n", "release", r.Name)
	must.NoError(t, err)
	test.StrContains(t, said, "allocation aaaaaaaa of node node-1", test.Sprint("it does not say whose it is"))
	test.StrContains(t, out, "is released")
	now := p.get(r.Name)
	test.Eq(t, endpoint.Released, now.State)
	test.Eq(t, "released by hand", now.Reason)
	test.ErrorIs(t, p.node.Renew(t.Context(), r.Ref(), endpoint.Mutable{}), endpoint.ErrEpoch)
}

func TestAdopt_GivesItToAnAllocation(t *testing.T) {
	p := newPlace(t)
	r := p.start("web")
	_, _, err := p.run("", "adopt", "-yes", r.Name, "bbbbbbbb")
	test.ErrorContains(t, err, `"bbbbbbbb" is not the whole id of an allocation`)
	test.Eq(t, r.Epoch, p.get(r.Name).Epoch)
	out, _, err := p.run("", "adopt", "-yes", r.Name, allocB)
	must.NoError(t, err)
	test.StrContains(t, out, "belongs to allocation "+allocB+" now, with epoch 2")
	now := p.get(r.Name)
	test.Eq(t, allocB, now.Owner.Alloc)
	test.Eq(t, endpoint.Running, now.State)
	test.ErrorIs(t, p.node.Renew(t.Context(), r.Ref(), endpoint.Mutable{}), endpoint.ErrEpoch)
}

func TestStop_LeavesTheExitToTheOwner(t *testing.T) {
	p := newPlace(t)
	r := p.start("web")
	out, _, err := p.run("yes\n", "stop", r.Name[:len(r.Name)-3])
	must.NoError(t, err)
	test.StrContains(t, out, r.Name+" has ended: ")
	now := p.get(r.Name)
	test.Eq(t, endpoint.Exited, now.State)
	test.Eq(t, r.Epoch, now.Epoch, test.Sprint("the owner could not tell it"))
	must.NotNil(t, now.Exit)
}

func TestStop_RemovesWhatNobodyOwns(t *testing.T) {
	p := newPlace(t)
	r := p.start("web")
	must.NoError(t, p.node.Release(t.Context(), r.Ref(), endpoint.Mutable{}, "x"))
	out, _, err := p.run("", "stop", "-yes", r.Name)
	must.NoError(t, err)
	test.StrContains(t, out, r.Name+" is removed\n")
	_, err = p.node.Get(t.Context(), r.Name)
	test.ErrorIs(t, err, endpoint.ErrGone)
}

func TestChange_DoesNothingWithoutAnAnswerOrWithAnotherEpoch(t *testing.T) {
	p := newPlace(t)
	r := p.start("web")
	second := p.start("db")
	for _, row := range []struct {
		answer string
		argv   []string
		want   string
	}{
		{"n\n", []string{"stop", r.Name}, "nothing was done"},
		{"", []string{"release", r.Name}, "nobody answered, so nothing was done: -yes answers"},
		{"", []string{"stop", "-yes", "-epoch", "7", r.Name}, "has epoch 1, not 7: it has another owner, and nothing"},
		{"", []string{"stop", "-yes", "nomad-"}, "2 tasks have a name that begins with nomad-: write more of it"},
		{"", []string{"stop", "-yes", "nomad-x"}, "no task is named nomad-x; endpoint away can't be used"},
		{"", []string{"adopt", "-yes", r.Name}, "usage: adopt"},
	} {
		_, _, err := p.run(row.answer, row.argv...)
		test.ErrorContains(t, err, row.want, test.Sprint(row.argv))
	}
	test.Eq(t, r.Epoch, p.get(r.Name).Epoch)
	test.Eq(t, endpoint.Running, p.get(r.Name).State)
	test.Eq(t, endpoint.Running, p.get(second.Name).State)
}

// Somebody takes the task over between the question and the answer.
func TestChange_IsRefusedWhenTheOwnerChangesMeanwhile(t *testing.T) {
	for _, name := range []string{"stop", "release", "adopt"} {
		p := newPlace(t)
		r := p.start("web")
		argv := []string{name, r.Name}
		if name == "adopt" {
			argv = append(argv, allocB)
		}
		var stdout, stderr bytes.Buffer
		s := &session{out: &stdout, err: &stderr, connect: p.connect}
		s.in = reader(func() string {
			_, err := p.node.Take(t.Context(), r.Ref(), endpoint.Owner{Alloc: another})
			must.NoError(t, err)
			return "y\n"
		})
		for _, c := range []command{adoptCommand, releaseCommand, stopCommand} {
			if c.name == name {
				err := c.with(t.Context(), s, append([]string{"-config", p.path}, argv[1:]...))
				test.ErrorContains(t, err, "has another owner meanwhile, and nothing was done", test.Sprint(name))
			}
		}
		now := p.get(r.Name)
		test.Eq(t, another, now.Owner.Alloc, test.Sprint(name))
		test.Eq(t, endpoint.Running, now.State, test.Sprint(name))
	}
}

// reader reads what it makes at the first read.
type reader func() string

func (r reader) Read(b []byte) (int, error) { return copy(b, r()), nil }

func TestGC_LeavesWhatMayBeWanted(t *testing.T) {
	p := newPlace(t)
	r := p.start("web")
	gone := p.start("old")
	must.NoError(t, p.node.Release(t.Context(), gone.Ref(), endpoint.Mutable{}, "x"))
	_, err := p.node.Stop(t.Context(), gone.Ref(), "SIGTERM", time.Second, "x")
	must.NoError(t, err)
	must.NoError(t, p.node.Renew(t.Context(), gone.Ref(), endpoint.Mutable{Told: true}))
	time.Sleep(1100 * time.Millisecond) // reap_after
	out, _, err := p.run("", "gc", "-dry-run", "mem")
	must.NoError(t, err)
	test.StrContains(t, out, "left     "+r.Name+" at mem (global/default/web.g[0]/t): it has an owner\n")
	test.StrContains(t, out, "to go    "+gone.Name)
	p.get(gone.Name)
	out, _, err = p.run("", "gc", "mem")
	must.NoError(t, err)
	test.StrContains(t, out, "removed  "+gone.Name)
	_, err = p.node.Get(t.Context(), gone.Name)
	test.ErrorIs(t, err, endpoint.ErrGone)
	p.get(r.Name)
	_, _, err = p.run("", "gc")
	test.ErrorContains(t, err, "endpoint away can't be used", test.Sprint("the one that is away"))
}

func TestCheck_ReportsEachStep(t *testing.T) {
	p := newPlace(t)
	out, _, err := p.run("", "check", "away")
	test.EqError(t, err, "1 of 1 endpoints can't be used")
	test.StrContains(t, out, "the configuration is valid\n\nendpoint away\n  FAILED  stat /nowhere/docker.sock: "+
		"no such file or directory: is the engine running, and is this its socket?\n")
	test.StrContains(t, out, "Nomad's API\n  note    api.address is empty: Nomad is not asked\n")
}

func TestCheck_TriesAnImage(t *testing.T) {
	p := newPlace(t)
	text := strings.Replace(agentFile, "docker {}", `docker { host = "unix://`+p.path+`" }`, 1) // a file is enough for it
	must.NoError(t, os.WriteFile(p.path, []byte(text), 0o600))
	out, _, err := p.run("", "check", "mem")
	must.NoError(t, err)
	test.StrContains(t, out, "  note    limits of resources are not enforced: it is none\n")
	test.StrNotContains(t, out, "a container of it")
	out, _, err = p.run("", "check", "-image", "web:1", "mem")
	must.NoError(t, err)
	test.StrContains(t, out, "  ok      Prepared nomad-")
	test.StrContains(t, out, "  ok      a container of it can be created\n")
	all, err := p.node.List(t.Context())
	must.NoError(t, err)
	test.SliceEmpty(t, all, test.Sprint("what was tried is left"))
}

func TestConfiguration_IsFoundOrNot(t *testing.T) {
	p := newPlace(t)
	must.NoError(t, os.WriteFile(p.path, []byte(`plugin "nomad-device-usb" {}`), 0o600))
	_, _, err := p.run("", "list")
	test.ErrorContains(t, err, `has no block plugin "nomad-driver-remote", only "nomad-device-usb"`)
	must.NoError(t, os.WriteFile(p.path, []byte(`plugin "nomad-driver-remote" { config { lease = "1s" } }`), 0o600))
	_, _, err = p.run("", "list")
	test.ErrorContains(t, err, `lease "1s" is too small`)
	must.NoError(t, os.WriteFile(p.path, []byte(`plugin "nomad-driver-remote" {}`), 0o600))
	_, _, err = p.run("", "list")
	test.ErrorContains(t, err, "has no endpoint")
}

func TestOwnerless_IsWhatNobodyTellsAbout(t *testing.T) {
	for name, c := range map[string]struct {
		r    endpoint.Record
		want bool
	}{
		"it runs":                       {endpoint.Record{State: endpoint.Running, Lease: 1}, false},
		"its owner is silent":           {endpoint.Record{State: endpoint.Running, Lease: -1}, true},
		"given up":                      {endpoint.Record{State: endpoint.Released, GivenUp: true}, true},
		"it has ended":                  {endpoint.Record{State: endpoint.Exited, Age: lease}, false},
		"it has ended, and nobody came": {endpoint.Record{State: endpoint.Exited, Age: lease + 1}, true},
		"it has ended when given up":    {endpoint.Record{State: endpoint.Exited, GivenUp: true}, true},
	} {
		test.Eq(t, c.want, ownerless(&c.r, lease), test.Sprint(name))
	}
}

func TestRelease_LeavesAStartToItsOwner(t *testing.T) {
	p := newPlace(t)
	key := endpoint.Key{Region: "global", Namespace: "default", Job: "web", Group: "g", Task: "t"}
	r := &endpoint.Record{
		Name: key.Name("0123456789ab"), Key: key, Hash: "0123456789ab", Owner: endpoint.Owner{Alloc: allocA},
	}
	must.NoError(t, p.node.Create(t.Context(), r))
	_, _, err := p.run("", "release", "-yes", r.Name)
	test.ErrorContains(t, err, "it does not run yet")
	test.Eq(t, uint64(1), p.get(r.Name).Epoch, test.Sprint("it was taken from its owner"))
}
