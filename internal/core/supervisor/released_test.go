// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// The files in a release's folder: talkFile contains a client's conversation with a supervisor, one exchange per line,
// and optionsFile the options that a supervisor passes to its successor.
const (
	talkFile    = "protocol.jsonl"
	optionsFile = "options.json"
)

// exchange is a request with its reply and the events that belong to it.
type exchange struct {
	Sent     json.RawMessage   `json:"sent"`
	Received []json.RawMessage `json:"received"`
}

// conversation is a connection to a supervisor that sends messages unchanged. (wire.Client would set their numbers.)
type conversation struct {
	t    *testing.T
	wire *wire.Transport
	dir  string // the host's directory; recorded messages contain placeholder instead
}

// spoken lists the recorded types: RecordFields writes the names and types of their fields.
var spoken = []any{task.State{}, task.Exit{}, request{}, reply{}, options{}}

const placeholder = "@DIR@"

// say sends a message and returns it with the reply and the given number of events.
func (c *conversation) say(sent json.RawMessage, events int, files ...*os.File) exchange {
	c.t.Helper()
	real := json.RawMessage(strings.ReplaceAll(string(sent), placeholder, c.dir))
	must.NoError(c.t, c.wire.Send(real, files...))
	must.NoError(c.t, c.wire.SetReadDeadline(time.Now().Add(time.Minute)))
	e := exchange{Sent: sent}
	for len(e.Received) < 1+events {
		var m json.RawMessage
		must.NoError(c.t, c.wire.Receive(&m), must.Sprintf("%s got only %s", sent, e.Received))
		e.Received = append(e.Received, json.RawMessage(strings.ReplaceAll(string(m), c.dir, placeholder)))
	}
	slices.SortFunc(e.Received, func(a, b json.RawMessage) int { // the reply first
		return bytes.Compare(seqOf(c.t, b), seqOf(c.t, a))
	})
	return e
}

func seqOf(t *testing.T, m json.RawMessage) []byte {
	var seq struct{ Seq json.RawMessage }
	must.NoError(t, json.Unmarshal(m, &seq))
	return seq.Seq
}

// files returns the files that a request with this operation needs.
func files(t *testing.T, op string) []*os.File {
	t.Helper()
	names := map[string][]string{opExec: {os.DevNull, os.DevNull, os.DevNull}, opUpgrade: {"/etc/passwd"}}[op]
	var list []*os.File
	for _, name := range names {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		must.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		list = append(list, f)
	}
	return list
}

// converse starts a supervisor and connects to it.
func converse(t *testing.T) (h *host, c *conversation) {
	t.Helper()
	h = newHost(t, withoutCgroup)
	h.startOld()
	w, err := dialOwn(h.store)
	must.NoError(t, err)
	t.Cleanup(w.Shut)
	return h, &conversation{t: t, wire: w, dir: h.dir}
}

// recordProtocol records a conversation with every operation, including requests that fail.
func recordProtocol(t *testing.T, dir string) {
	h, c := converse(t)
	const alloc = "5e1f3c52-0d6f-4b3f-9b36-2f4f3b1d0c11"
	umask, swappiness := uint32(0o27), uint64(10)
	st := &task.State{
		Version: task.StateVersion, ID: alloc + "/web/0a1b2c3d", AllocID: alloc, Task: "web", Request: "r",
		Command: task.Command{
			Path: "/bin/sh", Args: []string{"-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done"},
			Env: []string{"PATH=/usr/bin:/bin"}, Dir: "/", Umask: &umask,
			Rlimits: []task.Rlimit{{Resource: 7, Soft: 64, Hard: 64}},
		},
		Limits: cgroup.Limits{Swappiness: &swappiness},
		Group:  cgroup.Group{Mode: cgroup.None},
		Output: task.Output{Collector: task.CollectorDriver, AllocDir: placeholder + "/alloc", MaxFiles: 2,
			MaxFileSize: 1 << 20},
	}
	missing := *st
	missing.ID, missing.Command.Path = alloc+"/web/ffffffff", "/nonexistent"
	id := st.ID
	var lines bytes.Buffer
	seq := uint64(0)
	say := func(events int, r request) exchange {
		seq++
		files := files(t, r.Op)
		sent, err := json.Marshal(wire.Message[request]{Seq: seq, FDs: len(files), Body: r})
		must.NoError(t, err)
		e := c.say(sent, events, files...)
		line, err := json.Marshal(e)
		must.NoError(t, err)
		lines.Write(append(line, '\n'))
		return e
	}
	say(0, request{Op: opHello})
	say(0, request{Op: opLaunch, State: &missing})
	say(0, request{Op: opLaunch, State: st})
	h.waitOutput(&task.State{Task: "web", Output: task.Output{AllocDir: h.dir + "/alloc"}}, "ready")
	say(0, request{Op: opAdopt, State: st})
	say(1, request{Op: opExec, ID: id, Exec: &ExecSpec{Session: "s1", Path: "/bin/sh", Args: []string{"-c", "exit 3"}}})
	say(1, request{Op: opSignal, ID: id, Signal: int(unix.SIGTERM), Mode: task.KillProcess})
	say(0, request{Op: opSignal, ID: id, Signal: int(unix.SIGTERM), Mode: task.KillProcess})
	say(0, request{Op: opAdopt, State: st})
	say(0, request{Op: opKill, ID: id})
	say(0, request{Op: opDestroy, ID: id})
	say(0, request{Op: opSignal, ID: id, Signal: int(unix.SIGTERM), Mode: task.KillAll})
	say(0, request{Op: opUpgrade, Build: "another"})
	must.NoError(t, os.WriteFile(filepath.Join(dir, talkFile), lines.Bytes(), 0o644))

	testsupport.RecordFields(t, dir, spoken...)
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", h.supervisor()))
	must.NoError(t, err)
	for _, v := range strings.Split(string(env), "\x00") {
		if with, ok := strings.CutPrefix(v, optionsVar+"="); ok {
			with = strings.ReplaceAll(with, h.dir, placeholder)
			must.NoError(t, os.WriteFile(filepath.Join(dir, optionsFile), []byte(with+"\n"), 0o644))
		}
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	must.NoError(t, err)
	return b
}

// TestProtocol_ServesClientsOfEachRelease shows that this supervisor serves the plugins of earlier versions (after a
// rollback), and that this plugin understands their supervisors (after an upgrade). It repeats both with additional
// fields in all messages, which a later version may send.
func TestProtocol_ServesClientsOfEachRelease(t *testing.T) {
	testsupport.EachRelease(t, recordProtocol, func(t *testing.T, dir string) {
		testsupport.KeepsFields(t, dir, spoken...)
		b, err := os.ReadFile(filepath.Join(dir, optionsFile))
		must.NoError(t, err)
		var o options
		must.NoError(t, json.Unmarshal(b, &o))
		var later options
		must.NoError(t, json.Unmarshal(testsupport.LaterJSON(t, b), &later))
		test.Eq(t, o, later)

		b, err = os.ReadFile(filepath.Join(dir, talkFile))
		must.NoError(t, err)
		var talk []exchange
		for d := json.NewDecoder(bytes.NewReader(b)); ; {
			var e exchange
			if err := d.Decode(&e); err == io.EOF {
				break
			}
			must.NoError(t, err)
			talk = append(talk, e)
		}
		for _, e := range talk {
			understands[request](t, e.Sent)
			for _, m := range e.Received {
				understands[reply](t, m)
			}
		}
		t.Run("served", func(t *testing.T) { replay(t, talk, func(m json.RawMessage) json.RawMessage { return m }) })
		t.Run("served with more fields", func(t *testing.T) {
			replay(t, talk, func(m json.RawMessage) json.RawMessage { return testsupport.LaterJSON(t, m) })
		})
	})
}

// understands checks that a recorded message can be decoded, and that additional fields do not change the result.
func understands[T any](t *testing.T, recorded json.RawMessage) {
	t.Helper()
	var m, later wire.Message[T]
	must.NoError(t, json.Unmarshal(recorded, &m))
	must.NoError(t, json.Unmarshal(testsupport.LaterJSON(t, recorded), &later))
	test.Eq(t, m, later)
}

// replay sends the requests of an earlier client to a current supervisor. Each answer must contain everything that the
// recorded answer contains. A client with another protocol version sends only hello and upgrade.
func replay(t *testing.T, talk []exchange, edit func(json.RawMessage) json.RawMessage) {
	h, c := converse(t)
	var running *task.State // the task that this replay has launched
	same := false           // whether the client has the protocol version of this supervisor
	for _, e := range talk {
		var m wire.Message[request]
		must.NoError(t, json.Unmarshal(e.Sent, &m))
		if m.Body.Op == opHello {
			same = strings.Contains(string(e.Received[0]), fmt.Sprintf(`"protocol":%d,`, protocolVersion))
		}
		if !same && m.Body.Op != opHello && m.Body.Op != opUpgrade {
			continue
		}
		sent := e.Sent
		if m.Body.Op == opAdopt { // this replay runs another process than the recorded one
			m.Body.State.Identity = running.Identity
			sent = mustJSON(t, m)
		}
		now := c.say(edit(sent), len(e.Received)-1, files(t, m.Body.Op)...)
		for i, was := range e.Received {
			var then, got wire.Message[reply]
			must.NoError(t, json.Unmarshal(was, &then))
			must.NoError(t, json.Unmarshal(now.Received[i], &got))
			test.Eq(t, constant(then), constant(got), test.Sprintf("%s\nwas answered with %s\nand now with %s", e.Sent, was,
				now.Received[i]))
			if m.Body.Op == opLaunch && got.Body.Stat != nil {
				running = got.Body.Stat.State
				h.waitOutput(&task.State{Task: "web", Output: task.Output{AllocDir: h.dir + "/alloc"}}, "ready")
			}
		}
	}
}

// constant returns a message without the fields that differ between two runs.
func constant(m wire.Message[reply]) wire.Message[reply] {
	b := &m.Body
	if b.Hello != nil {
		b.Hello = &hello{}
	}
	exit := func(e *task.Exit) *task.Exit {
		if e == nil {
			return nil
		}
		return &task.Exit{Code: e.Code, Signal: e.Signal, Lost: e.Lost}
	}
	b.Exit = exit(b.Exit)
	if b.Stat != nil {
		b.Stat.Exit = exit(b.Stat.Exit)
		b.Stat.State.Identity = task.Identity{}
		b.Stat.State.Output.FIFOs = [2]task.Inode{}
		b.Stat.State.Mounts = nil
	}
	if b.Error != nil {
		b.Error.Message = ""
		if b.Error.Start != nil {
			b.Error.Start.Message = ""
		}
	}
	return m
}
