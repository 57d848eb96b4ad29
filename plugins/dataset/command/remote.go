// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/plugins/dataset/policy"
	"github.com/outrider-dev/outrider/plugins/dataset/stream"
)

// usualShell ends when the other host does not answer any more, and never waits for a password.
const usualShell = "ssh -o ServerAliveInterval=15 -o BatchMode=yes"

// remote runs this program on another host.
type remote struct {
	shell   string // with its options, split at spaces
	host    string
	program string
	file    string // the operator's; empty is the usual one
}

// complete fills in what was not given.
func (r *remote) complete(n *api.NodeListStub) {
	if r.host == "" {
		r.host = n.Address
	}
	if r.program == "" {
		r.program = "nomad-device-dataset"
		if exe, err := os.Executable(); err == nil {
			r.program = exe
		}
	}
}

// run returns what the command there has written. in may be nil, or writes its input.
func (r *remote) run(ctx context.Context, in func(io.Writer) error, args ...string) ([]byte, error) {
	shell := strings.Fields(r.shell)
	if len(shell) == 0 {
		return nil, errors.New("-e is empty: use for example \"ssh -p 2222\"")
	}
	line := quoteShell(r.program)
	for _, a := range args {
		line += " " + quoteShell(a)
	}
	if r.file != "" {
		line += " -file " + quoteShell(r.file)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, shell[0], append(shell[1:], r.host, line)...)
	cmd.WaitDelay = 5 * time.Second
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	var stdin io.WriteCloser
	var err error
	if in != nil {
		if stdin, err = cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("the remote shell %s can't be run: %w", shell[0], err)
	}
	var inErr error
	if in != nil {
		inErr = in(stdin)
		stdin.Close()
	}
	err = cmd.Wait()
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	switch {
	case inErr != nil && strings.Contains(last, stream.ErrTruncated.Error()): // for which the reason is here
		return nil, inErr
	case err != nil && last != "":
		return nil, fmt.Errorf("%s on host %s: %s", args[0], r.host, plain.Line(last, 0))
	case err != nil:
		return nil, fmt.Errorf("%s on host %s: %w", args[0], r.host, errors.Join(err, inErr))
	case inErr != nil:
		return nil, inErr
	}
	return out.Bytes(), nil
}

// state asks what was received of a volume.
func (r *remote) state(ctx context.Context, class, id string) (received, error) {
	out, err := r.run(ctx, nil, "receive", class, "-state", id)
	if err != nil {
		return received{}, err
	}
	return parseState(out, r.host)
}

// accepts returns why a class there would refuse a volume.
func (r *remote) accepts(ctx context.Context, class string, volume policy.Request) error {
	text, err := json.Marshal(volume)
	if err != nil {
		return err
	}
	_, err = r.run(ctx, nil, "receive", class, "-state", volume.ID, "-volume", string(text))
	return err
}

// receive sends a stream.
func (r *remote) receive(ctx context.Context, class string, send func(io.Writer) error) (received, error) {
	out, err := r.run(ctx, send, "receive", class, "-json")
	if err != nil {
		return received{}, err
	}
	return parseState(out, r.host)
}

func parseState(out []byte, host string) (state received, err error) {
	if err := json.Unmarshal(out, &state); err != nil {
		return state, fmt.Errorf("the answer of host %s is not that of this program: is it the same version? %w", host, err)
	}
	return state, nil
}

func (r *remote) removeSnapshots(ctx context.Context, id, pattern string) error {
	_, err := r.run(ctx, nil, "snapshot", id, pattern, "-remove")
	return err
}

// quoteShell is a word for a shell of POSIX, which the remote one is taken to be.
func quoteShell(word string) string {
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
