// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package remote

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/agent"
)

// TestLines_AreWholeOverHandOvers has a task on a host and one in an engine print a million lines while they are handed
// over ten times: by drains, and by the loss of their node, which comes back. Each line is in the files of one
// allocation, and they are in order.
func TestLines_AreWholeOverHandOvers(t *testing.T) {
	x := &table{classes: []class{token}, kinds: []string{"box"}, nodes: 2}
	x.start(t)
	const lines = 1_000_000
	begin := func(phase int) { // of the program, which prints while it is handed over
		must.NoError(t, os.WriteFile(fmt.Sprint(filepath.Join(x.runs, "phase"), phase), nil, 0o644))
	}
	begin(0)
	var list []*cell
	for _, kind := range x.kinds {
		c := &cell{table: x, by: token, kind: kind, row: "lines", n: int(cellCount.Add(1)), job: "lines-" + kind}
		c.spec = func(j *api.Job) {
			j.TaskGroups[0].Tasks[0].SetConfig("args", []string{"-c", fmt.Sprintf(`echo $$ >> %s/%s.0
(exec sleep %s0) & n=0; while [ $n -lt 100 ]; do while ! [ -e %s/phase$((n/9)) ]; do sleep 0.1; done
seq $((n*10000)) $((n*10000+9999)); n=$((n+1)); sleep 0.4; done; wait`, c.runs, c.job, c.mark(), c.runs)})
		}
		list = append(list, c)
	}
	x.only(t, 0)
	together(list, func(c *cell) {
		c.submit(t)
		c.started(t)
	})
	must.NoError(t, x.engine.know(list...))
	for i := range 10 {
		begin(i + 1)
		from := i % 2
		x.only(t, 1-from)
		lose := i%4 > 1
		if lose {
			must.NoError(t, x.Clients[from].Kill(t.Context()))
		} else {
			must.NoError(t, agent.Drain(t.Context(), x.api(), x.node(from), 5*time.Second))
		}
		together(list, func(c *cell) {
			c.same(t)
			a, err := c.placed()
			test.NoError(t, err)
			if err == nil {
				c.alloc = a.ID
			}
		})
		if lose {
			must.NoError(t, x.Clients[from].Start(t.Context()))
			_, err := agent.WaitHealthy(t.Context(), x.Clients[from])
			must.NoError(t, err)
		} else {
			must.NoError(t, agent.Undrain(t.Context(), x.api(), x.node(from)))
		}
	}
	begin(11)
	together(list, func(c *cell) {
		c.within(t, "prints all lines in order", func() error { return c.counts(lines) })
		c.finish(t)
	})
	x.empty(t)
	x.ends(t)
}

// counts is an error unless the files of all allocations together have the lines 0, 1, 2 and so on. An engine decodes
// its log from the beginning to find a place in it, which may take longer than an allocation lasts here: what that one
// did not copy is the next one's.
func (c *cell) counts(lines int) error {
	list, _, err := c.api().Jobs().Allocations(c.job, true, nil)
	if err != nil {
		return err
	}
	if len(list) != 11 {
		return fmt.Errorf("%d allocations", len(list))
	}
	slices.SortFunc(list, func(a, b *api.AllocationListStub) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
	var text []byte
	silent, mostSilent := 0, map[string]int{"box": 0, "engine": 8}[c.kind]
	for _, stub := range list {
		r, err := c.api().AllocFS().Cat(&api.Allocation{ID: stub.ID}, "alloc/logs/main.stdout.0", nil)
		if err != nil {
			return err
		}
		part, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil {
			return err
		}
		if len(part) == 0 {
			silent++
		}
		text = append(text, part...)
	}
	n := 0
	for line := range bytes.Lines(text) {
		if string(line) != strconv.Itoa(n)+"\n" {
			return fmt.Errorf("line %d is %q", n, line)
		}
		n++
	}
	if n != lines || silent > mostSilent {
		return fmt.Errorf("%d lines, and %d allocations without one", n, silent)
	}
	return nil
}
