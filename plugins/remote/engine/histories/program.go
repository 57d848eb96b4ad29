// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package histories

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// Seeds returns the seeds of n histories. They change each day. A seed in OUTRIDER_SAMPLE is the only one.
func Seeds(t testing.TB, n int) (list []uint64) {
	t.Helper()
	if seed, sampled := testsupport.Seed(t); sampled {
		return []uint64{seed}
	}
	day, err := strconv.ParseUint(time.Now().Format("20060102"), 10, 64)
	must.NoError(t, err)
	for i := range n {
		list = append(list, day*1000+uint64(i))
	}
	return list
}

// Program is a shell's script for Options.Spec. It appends a line to the file $DIR/$JOB when it starts and when it
// ends, for ReadRuns. SIGUSR1 and SIGUSR2 end it with codes 0 and 1. The command lock holds a lock of $JOB until it is
// killed, and fails with code 1 where another process has it.
func Program(lock string) string {
	return `id=$(cat /proc/sys/kernel/random/uuid)
say() { echo "$1 $id $2" >>"$DIR/$JOB"; }
end() { say end $1; kill $! 2>/dev/null; exit $1; }
trap 'end 143' TERM; trap 'end 0' USR1; trap 'end 1' USR2
say start
{ ` + lock + `; [ $? != 1 ] || say two; } & wait
`
}

// ReadRuns returns the runs of a job's Program in their order, whose times are numbers of lines. A run that was killed
// has no end: it is over when the next one starts, unless that one found the lock held.
func ReadRuns(t testing.TB, dir, job string) (list []Ran) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, job))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	must.NoError(t, err)
	runs := map[string]int{}
	line := 0
	for text := range strings.Lines(string(text)) {
		line++
		now, words := time.Unix(int64(line), 0), strings.Fields(text)
		must.SliceNotEmpty(t, words)
		switch id := words[1]; words[0] {
		case "start":
			for i := range list {
				if list[i].To.IsZero() {
					list[i].To = now
				}
			}
			runs[id] = len(list)
			list = append(list, Ran{From: now})
		case "two":
			must.Positive(t, runs[id], must.Sprint("another process has the lock"))
			list[runs[id]].From = list[runs[id]-1].From // it ran beside that one
		case "end":
			code, err := strconv.Atoi(words[2])
			must.NoError(t, err)
			list[runs[id]].To, list[runs[id]].Exit = now, &task.Exit{Code: code, At: now}
		}
	}
	return list
}
