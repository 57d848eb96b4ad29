// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/simulate/simulatetest"
)

// What the engine needs for an operation, against the bare programs, in turns in one run:
//
//	go test ./engine -run '^$' -bench Btrfs -benchtime 100x
func BenchmarkBtrfs(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("only root makes pools")
	}
	pool := simulatetest.New(b, "btrfs")
	e := &engine.Engine{Backend: engine.NewBtrfs(pool.Program, pool.Root), Locks: filepath.Join(b.TempDir(), "locks")}
	bare := filepath.Join(pool.Root, "bare")
	must.NoError(b, os.Mkdir(bare, 0o711))
	program := func(args ...string) {
		b.Helper()
		out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		must.NoError(b, err, must.Sprint(string(out)))
	}
	var took [2][2]time.Duration // create, release; the engine, the programs
	measure := func(operation, who int, f func()) {
		start := time.Now()
		f()
		took[operation][who] += time.Since(start)
	}
	n := 0
	for b.Loop() {
		n++
		id, path := fmt.Sprint("s", n), filepath.Join(bare, fmt.Sprint(n))
		measure(0, 0, func() {
			unlock, err := e.Lock(b.Context(), id)
			must.NoError(b, err)
			defer unlock()
			_, err = e.Create(b.Context(), engine.SlotName(id, "lease"), engine.Spec{Limits: engine.Limits{Data: 64 * mib},
				Tags: engine.Tags{engine.Kind: "slot", engine.ID: id}})
			must.NoError(b, err)
		})
		measure(0, 1, func() {
			program(pool.Program, "subvolume", "create", path)
			program(pool.Program, "qgroup", "limit", "64M", path)
		})
		measure(1, 0, func() {
			unlock, err := e.Lock(b.Context(), id)
			must.NoError(b, err)
			defer unlock()
			must.NoError(b, e.Discard(b.Context(), engine.SlotName(id, "lease"), time.Hour))
		})
		measure(1, 1, func() { program("mv", path, path+".gone") })
	}
	b.ReportMetric(0, "ns/op")
	for i, operation := range []string{"create", "release"} {
		b.ReportMetric(float64(took[i][0].Microseconds())/float64(n)/1000, "ms/"+operation)
		b.ReportMetric(float64(took[i][0])/float64(took[i][1]), "x-bare-"+operation)
	}
}
