// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Readers take turns, each after some chunks, while the program writes.
func TestLogs_GoOnAtAPlace(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		c, r := e.connect(t), object(t, e)
		const lines = 3000
		var want strings.Builder
		for i := range lines {
			fmt.Fprintln(&want, i+1)
		}
		long := strings.Repeat("y", 40000)
		fmt.Fprintf(&want, "part whole\n%s\n", long)
		got := start(t, c, r, shell(`echo error >&2; for i in $(seq 1 300); do seq $((i * 10 - 9)) $((i * 10)); done
			printf 'part '; sleep 0.2; echo whole; yes y | head -c 80000 | while read l; do printf $l; done; echo`))

		var (
			text  strings.Builder
			place endpoint.Place
			skip  int64
		)
		for turn := 1; ; turn++ {
			l, err := c.Logs(t.Context(), r.Name, "stdout", place, skip)
			must.NoError(t, err)
			over := false
			for range turn {
				chunk, err := l.Next()
				if over = errors.Is(err, io.EOF); over {
					break
				}
				must.NoError(t, err)
				must.False(t, chunk.Gap)
				text.Write(chunk.Data)
				place, skip = chunk.End, 0
			}
			must.NoError(t, l.Close())
			if over {
				break
			}
		}
		must.Eq(t, want.Len(), text.Len())
		must.True(t, want.String() == text.String())
		must.Eq(t, want.String()[100:], output(t, c, r.Name, "stdout", endpoint.Place{}, 100))
		must.Eq(t, "error\n", output(t, c, r.Name, "stderr", endpoint.Place{}, 0))
		must.Eq(t, "", output(t, c, r.Name, "stdout", place, 0))

		// a place that is not there any more
		place.File -= int64(time.Hour)
		l, err := c.Logs(t.Context(), r.Name, "stdout", place, 0)
		must.NoError(t, err)
		defer l.Close()
		chunk, err := l.Next()
		must.NoError(t, err)
		must.True(t, chunk.Gap)
		must.NoError(t, c.Remove(t.Context(), got.Ref()))
	})
}

// A reader that is held up while the program writes many files of its log gets all of them.
func TestLogs_MissNoFile(t *testing.T) { onEngines(t, missNoFile) }

func missNoFile(t *testing.T, e *engine) {
	if e.name == "podman" {
		return // it has one file
	}
	c, r := e.connect(t), object(t, e)
	_, err := c.Probe(t.Context()) // which asks for the engine's time
	must.NoError(t, err)
	const lines, length = 64_000, 1000
	s := shell(fmt.Sprintf(`awk 'BEGIN { x = sprintf("%%%dd", 0); for (i = 1; i <= %d; i++) print i x }'; echo error >&2`,
		length, lines))
	s.MaxFiles, s.MaxSize = 200, 1<<20
	got := start(t, c, r, s)
	l, err := c.Logs(t.Context(), r.Name, "stdout", endpoint.Place{}, 0)
	must.NoError(t, err)
	defer l.Close()
	next, held, rest := 1, 0, ""
	for {
		chunk, err := l.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.NoError(t, err)
		must.False(t, chunk.Gap)
		all := strings.SplitAfter(rest+string(chunk.Data), "\n")
		for ; len(all) > 1; all = all[1:] {
			text, _, _ := strings.Cut(all[0], " ")
			number, err := strconv.Atoi(text)
			must.NoError(t, err)
			must.Eq(t, len(text)+length+1, len(all[0]))
			must.LessEq(t, next, number) // Docker 20.10 has told the first lines of a file twice, on a busy machine
			next = max(next, number+1)
		}
		rest = all[0]
		if held < 3 && next > (held+1)*lines/8 {
			held++
			time.Sleep(time.Second) // in which the program writes some dozen files
		}
	}
	must.Eq(t, "", rest)
	must.Eq(t, lines+1, next)
	must.NoError(t, c.Remove(t.Context(), got.Ref()))
}
