// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// qmp speaks QEMU's machine protocol (docs/interop/qmp-spec): a line of JSON for a
// command, and one for its result, with events between them.
type qmp struct {
	mu   sync.Mutex // one command at a time
	conn net.Conn
	in   *json.Decoder
	met  bool
}

const qmpPatience = 30 * time.Second

func newQMP(c net.Conn) *qmp { return &qmp{conn: c, in: json.NewDecoder(c)} }

func (q *qmp) close() { q.conn.Close() }

// do runs one command.
func (q *qmp) do(command string, args any) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.conn.SetDeadline(time.Now().Add(qmpPatience))
	if !q.met {
		if err := q.greet(); err != nil {
			return fmt.Errorf("failed to talk to qemu: %w", err)
		}
		q.met = true
	}
	if err := q.command(command, args); err != nil {
		return fmt.Errorf("qemu: %s: %w", command, err)
	}
	return nil
}

func (q *qmp) greet() error {
	var hello struct{ QMP json.RawMessage }
	if err := q.in.Decode(&hello); err != nil {
		return err
	}
	return q.command("qmp_capabilities", nil)
}

func (q *qmp) command(command string, args any) error {
	m := map[string]any{"execute": command}
	if args != nil {
		m["arguments"] = args
	}
	if err := json.NewEncoder(q.conn).Encode(m); err != nil {
		return err
	}
	for {
		var answer struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := q.in.Decode(&answer); err != nil {
			return err
		}
		switch {
		case answer.Error != nil:
			return errors.New(answer.Error.Desc)
		case answer.Return != nil:
			return nil
		}
		// else it is an event
	}
}
