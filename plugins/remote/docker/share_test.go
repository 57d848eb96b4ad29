// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// frame is one of an engine's log.
func frame(stream byte, at time.Time, text string) string {
	text = at.UTC().Format(time.RFC3339Nano) + " " + text
	return string(binary.BigEndian.AppendUint32([]byte{stream, 0, 0, 0}, uint32(len(text)))) + text
}

// shared are the chunks that readers get of a log.
func shared(t *testing.T, log io.Reader, readers [2]*logReader) (all [2][]endpoint.Chunk, err error) {
	var group sync.WaitGroup
	for i, l := range readers {
		if l.chunks = make(chan *endpoint.Chunk, 1); l.ctx == nil {
			l.ctx = t.Context()
		}
		l.begin()
		group.Go(func() {
			for c := range l.chunks {
				all[i] = append(all[i], *c)
			}
		})
	}
	err = share(log, readers, &lag{})
	for _, l := range readers {
		close(l.chunks)
	}
	group.Wait()
	return all, err
}

func TestShare_TakesASilentReaderAlong(t *testing.T) {
	t0 := time.Unix(1_700_000_000, 0)
	place := func(after time.Duration) endpoint.Place { return endpoint.Place{File: t0.Add(after).UnixNano()} }
	at := func(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }
	log := frame(2, t0, "error\n") + frame(1, at(1), "1\n") + frame(1, at(20), "2\n") + frame(1, at(31), "3\n") +
		frame(1, at(40), "4\n") + frame(2, at(22), "late\n") + frame(1, at(41), "5\n") + frame(1, at(100), "6\n")
	readers := [2]*logReader{{}, {}}
	all, err := shared(t, strings.NewReader(log), readers)
	must.ErrorIs(t, err, io.EOF)
	var text strings.Builder
	for _, c := range all[1] {
		text.Write(c.Data)
		test.False(t, c.Gap)
	}
	test.Eq(t, "error\nlate\n", text.String())
	test.Eq(t, place(90*time.Second), readers[1].place)
	test.Eq(t, readers[1].place, all[1][len(all[1])-1].End)

	// what is late by more than that is still read in this request
	readers = [2]*logReader{{place: place(0)}, {place: place(0)}}
	all, err = shared(t, strings.NewReader(frame(1, at(40), "4\n")+frame(2, at(22), "late\n")), readers)
	must.ErrorIs(t, err, io.EOF)
	must.Len(t, 1, all[1])
	test.Eq(t, "late\n", string(all[1][0].Data))

	// one that has to skip output waits for it, and what was there of the engine's is missed
	readers = [2]*logReader{{place: place(0)}, {place: place(0), skip: 3}}
	_, err = shared(t, strings.NewReader(frame(1, at(40), "4\n")), readers)
	must.ErrorIs(t, err, io.EOF)
	test.Eq(t, place(0), readers[1].place)
	readers = [2]*logReader{{place: place(0)}, {place: endpoint.Place{File: t0.UnixNano(), Offset: 3}}}
	all, err = shared(t, strings.NewReader(frame(1, at(40), "4\n")), readers)
	must.ErrorIs(t, err, io.EOF)
	must.Len(t, 1, all[1])
	test.True(t, all[1][0].Gap)
	test.Eq(t, place(30*time.Second), all[1][0].End)
}

// A connection that is cut is not the end of the output.
func TestFrames_TellAnEndInsideOfOne(t *testing.T) {
	whole := frame(1, time.Unix(1, 0), "text\n")
	for n := range len(whole) {
		in := frames{body: strings.NewReader((whole + whole)[:len(whole)+n])}
		_, _, err := in.next()
		must.NoError(t, err)
		want := io.ErrUnexpectedEOF
		if n == 0 {
			want = io.EOF
		}
		_, _, err = in.next()
		must.EqError(t, err, want.Error(), must.Sprint(n))
	}
}

func TestExec_TellsThatItsOutputWasCut(t *testing.T) {
	var out, errs bytes.Buffer
	log := "\x01\x00\x00\x00\x00\x00\x00\x02ab\x02\x00\x00\x00\x00\x00\x00\x01c\x01\x00\x00\x00\x00\x00\x00\x00"
	must.NoError(t, split(strings.NewReader(log), &out, &errs))
	must.Eq(t, "ab c", out.String()+" "+errs.String())
	must.ErrorIs(t, split(strings.NewReader(log[:9]), &out, &errs), io.ErrUnexpectedEOF)
	must.ErrorContains(t, split(strings.NewReader("\x01\x00\x00\x00\xff\xff\xff\xffab"), &out, &errs), "4294967295 bytes")
	must.EqError(t, split(strings.NewReader("\x03\x00\x00\x00\x00\x00\x00\x05oops\n"), &out, &errs), "oops")
}

func TestLag_IsSeenByTimeAndRate(t *testing.T) {
	for name, row := range map[string]struct {
		late, every time.Duration
		size        int
		behind      bool
	}{
		"fast":                   {0, 100 * time.Microsecond, 4 << 10, false},
		"fast, late":             {time.Second, 100 * time.Microsecond, 4 << 10, true},
		"fast, a little late":    {30 * time.Millisecond, 100 * time.Microsecond, 1 << 10, false},
		"very fast, almost here": {15 * time.Millisecond, 10 * time.Microsecond, 4 << 10, false},
		"slow, late":             {time.Hour, 100 * time.Millisecond, 100, false},
	} {
		now := time.Now()
		g := &lag{begun: now, clock: now.UnixNano(), file: 1 << 20}
		seen := false
		for i := range 1000 {
			at := now.Add(time.Duration(i) * row.every)
			seen = seen || g.seesAt(at.Add(-row.late).UnixNano(), row.size, at)
		}
		test.Eq(t, row.behind, seen, test.Sprint(name))
	}
}
