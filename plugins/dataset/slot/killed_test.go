// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package slot

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/outrider-dev/outrider/internal/core/conformance"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse/zfsfusetest"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

const group = "zfs/dataset/fast"

// executioner is a script that replaces the zfs program: it counts the calls, and runs zfs. If the file "at" has the
// number of the call, it kills the plugin before or after the call. It writes the mount points of datasets to the file
// "places".
const executioner = `#!/bin/sh
cd %[1]q || exit 1
n=$(($(cat calls 2>/dev/null) + 1)); echo $n >calls
for word; do case $word in mountpoint=/*) echo "${word#*=}" >>places; esac; done
read -r at when 2>/dev/null <at
[ "$n $when" = "$at before" ] && echo >killed && kill -9 $PPID
%[2]q "$@"; code=$?
[ "$n $when" = "$at after" ] && echo >killed && kill -9 $PPID
exit $code
`

// The test kills the plugin before and after each call of zfs during a reservation, which first releases the slot.
func TestSlots_HaveNoLeftoversAfterAKill(t *testing.T) {
	testsupport.Long(t, "repeats")
	s := newSite(t, zfsfusetest.New(t))
	dir := t.TempDir()
	file := filepath.Join(dir, "dataset.hcl")
	program := filepath.Join(dir, "zfs")
	must.NoError(t, os.WriteFile(program, fmt.Appendf(nil, executioner, dir, s.Program), 0o755))
	text, err := os.ReadFile(s.file)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), s.Program, program, 1)), 0o600))
	b := s.binary
	b.Config = strings.Replace(strings.Replace(b.Config, s.file, file, 1), "700ms", "1h", 1) // no sweep during the test
	m := conformance.StartManager(t, b)
	reserve := func() error {
		_, err := m.Reserve(group, "fast-00")
		return err
	}
	eventually := func(what string, f func() error) {
		t.Helper()
		must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(f), wait.Timeout(time.Minute), wait.Gap(100*time.Millisecond)),
			must.Sprint(what))
	}
	eventually("the first reservation", reserve)
	set := func(name, text string) { must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)) }
	// the number of calls is not fixed, because calls of other goroutines are also counted
	killed := 0
	for step, reached := 1, true; reached; step++ {
		must.Less(t, 50, step)
		reached = false
		for _, when := range []string{"before", "after"} {
			pid := m.PID()
			set("calls", "0")
			set("at", fmt.Sprint(step, " ", when))
			err := reserve()
			must.NoError(t, os.Remove(filepath.Join(dir, "at")))
			if os.Remove(filepath.Join(dir, "killed")) == nil {
				m.Killed(pid)
				killed++
				reached = true
			} else {
				must.NoError(t, err)
			}
			eventually("the next reservation", reserve)
			must.Len(t, 1, s.leases(t), must.Sprintf("%s step %d", when, step))
		}
	}
	must.Positive(t, killed)
	t.Logf("killed %d times", killed)
	s.empty(t)
	places, err := os.ReadFile(filepath.Join(dir, "places"))
	must.NoError(t, err)
	var left []string
	for place := range strings.Lines(string(places)) {
		place = strings.TrimSpace(place)
		if testsupport.Exists(place) && !slices.Contains(left, place) {
			left = append(left, place)
		}
	}
	must.Eq(t, []string{s.leases(t)[0].Path}, left, must.Sprint("directories"))
}

// empty destroys the datasets in the trash, and checks that all others are leases.
func (s *site) empty(t *testing.T) {
	t.Helper()
	all, err := s.engine.List(t.Context())
	must.NoError(t, err)
	for _, d := range all {
		if engine.InTrash(d.Name) {
			_, unlock, err := s.engine.Lock(t.Context(), engine.TrashLock(d.Name), time.Minute) // the plugin may destroy d too
			must.NoError(t, err)
			must.NoError(t, s.engine.Destroy(t.Context(), d.Name))
			unlock()
		} else {
			must.Eq(t, ".slots", filepath.Dir(d.Name))
		}
	}
}

// TestSlots_ReservationsLeakNoMemory measures the plugin's memory over many reservations.
func TestSlots_ReservationsLeakNoMemory(t *testing.T) {
	testsupport.Long(t, "hundreds of reservations")
	const first, more = 100, 300 // an earlier leak took 1 MiB per 50 reservations
	s := newSite(t, zfsfusetest.New(t))
	m := conformance.StartManager(t, s.binary)
	resident := func(n int) (kib int) {
		for range n {
			_, err := m.Reserve(group, "fast-00")
			must.NoError(t, err)
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.PID()))
		must.NoError(t, err)
		_, text, _ := strings.Cut(string(status), "VmRSS:")
		_, err = fmt.Sscan(text, &kib)
		must.NoError(t, err)
		return kib
	}
	must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(func() error {
		_, err := m.Reserve(group, "fast-00")
		return err
	}), wait.Timeout(time.Minute), wait.Gap(100*time.Millisecond)))
	before := resident(first)
	began := time.Now()
	after := resident(more)
	t.Logf("%d reservations in %s; resident %d KiB before, %d KiB after", more, time.Since(began), before, after)
	must.Less(t, before+4<<10, after)
	must.Len(t, 1, s.leases(t))
}
