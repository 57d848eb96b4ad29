// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbsim

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// answer is the prefix of each line that the stick sends. The stick ignores received lines with this
// prefix: they are its own lines, echoed by the port.
const answer = "stick: "

// patience is how long the stick waits for a task to read. It then drops the answer, like a
// serial line without flow control.
const patience = time.Second

// Serve reads the lines that tasks write to the nodes, until ctx ends. It copies each line to out, and answers on the
// same node. A line of more than 4 kB is treated as several lines.
func (p *Plugged) Serve(ctx context.Context, out io.Writer) error {
	var all sync.WaitGroup
	var writing sync.Mutex // held while a line is written to out
	errs := make([]error, len(p.terminals))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, t := range p.terminals {
		stop := context.AfterFunc(ctx, func() { t.master.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
		all.Go(func() {
			defer cancel() // if one node fails, end them all
			errs[i] = converse(t.master, func(line []byte) error {
				writing.Lock()
				defer writing.Unlock()
				_, err := fmt.Fprintf(out, "%s\n", line)
				return err
			})
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func converse(port *os.File, said func(line []byte) error) error {
	lines := bufio.NewReaderSize(port, 4096)
	for {
		line, err := lines.ReadSlice('\n')
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return fmt.Errorf("failed to read the output of a task: %w", err)
		case len(line) == 0 || bytes.HasPrefix(line, []byte(answer)):
			continue
		}
		if err := said(line); err != nil {
			return err
		}
		port.SetWriteDeadline(time.Now().Add(patience))
		fmt.Fprintf(port, "%s%s\n", answer, line)
	}
}
