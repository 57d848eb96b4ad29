// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestStarter_MeasuresTheTimeToTheFirstLine(t *testing.T) {
	s, err := newStarter(filepath.Join(t.TempDir(), "dir"))
	must.NoError(t, err)
	defer s.began.Close()
	for range 3 {
		before := time.Now()
		took, err := s.fork(exec.Command("/bin/sh", "-c", "echo >"+s.fifo))
		must.NoError(t, err)
		if took <= 0 || took > time.Since(before) {
			t.Errorf("the first line was %v after the start, in a run of %v", took, time.Since(before))
		}
	}
	_, err = s.fork(exec.Command("/bin/sh", "-c", "echo >"+s.fifo+"; exit 1"))
	test.Error(t, err, test.Sprint("a failing program was measured"))
}

func TestRatio_ReturnsAFactorAndAWord(t *testing.T) {
	for _, c := range []struct {
		value, peer float64
		unit, want  string
	}{
		{10, 6000, "kB", "600× less"},
		{10, 61, "ms", "6.1× faster"},
		{61, 10, "ms", "6.1× slower"},
		{25, 10, "kB", "2.5× more"},
		{-3, 5, "kB", ""}, // within the noise
		{3, 0, "kB", ""},
	} {
		test.Eq(t, c.want, ratio(c.value, c.peer, c.unit), test.Sprintf("%g to %g", c.value, c.peer))
	}
}

func TestResults_AreMedians(t *testing.T) {
	var r results
	for _, n := range []float64{3, 1, 200} {
		r.add([2]string{"exec-lite", "raw_exec"}, "memory", "kB", 0, n)
		r.add([2]string{"exec-lite", "raw_exec"}, "memory", "kB", 1, 10*n)
	}
	file := filepath.Join(t.TempDir(), "results.json")
	var table strings.Builder
	must.NoError(t, r.print(&table))
	test.StrContains(t, table.String(), "10× less")
	must.NoError(t, r.write(file))
	b, err := os.ReadFile(file)
	must.NoError(t, err)
	var got struct{ Rows []map[string]any }
	must.NoError(t, json.Unmarshal(b, &got))
	test.Eq(t, []map[string]any{{"plugin": "exec-lite", "measured": "memory", "value": 3.0, "peer": "raw_exec",
		"peer_value": 30.0, "unit": "kB", "ratio": "10× less"}}, got.Rows)
}
