// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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

// do runs one command. Where file is not nil, QEMU gets it with the command.
func (q *qmp) do(command string, args any, file *os.File) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.conn.SetDeadline(time.Now().Add(qmpPatience))
	if !q.met {
		if err := q.greet(); err != nil {
			return fmt.Errorf("failed to talk to qemu: %w", err)
		}
		q.met = true
	}
	if err := q.command(command, args, file); err != nil {
		return fmt.Errorf("qemu: %s: %w", command, err)
	}
	return nil
}

func (q *qmp) greet() error {
	var hello struct{ QMP json.RawMessage }
	if err := q.in.Decode(&hello); err != nil {
		return err
	}
	return q.command("qmp_capabilities", nil, nil)
}

func (q *qmp) command(command string, args any, file *os.File) error {
	m := map[string]any{"execute": command}
	if args != nil {
		m["arguments"] = args
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	if _, _, err := q.conn.(*net.UnixConn).WriteMsgUnix(append(b, '\n'), rights, nil); err != nil {
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
			return fmt.Errorf("%s", answer.Error.Desc)
		case answer.Return != nil:
			return nil
		}
		// else it is an event
	}
}
