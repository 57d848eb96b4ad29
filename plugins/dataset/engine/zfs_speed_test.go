// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// BenchmarkZFS_Create compares how long the engine and an equivalent "zfs create" take to make and mount a dataset with
// limits. One run alternates between the two:
//
//	go test ./engine -run '^$' -bench ZFS -benchtime 100x
func BenchmarkZFS_Create(b *testing.B) {
	compare(b, func(b *testing.B, c column) (bare, own func() time.Duration) {
		limits := engine.Limits{Data: 32 * mib}
		return func() time.Duration {
				name, limit := c.name(), fmt.Sprint(limits.Data)
				full := filepath.Join(c.pool.Root, name)
				return took(func() {
					run(b, c.pool.Program, "create", "-o", "refquota="+limit, "-o", "quota=none", "-o", "mountpoint="+c.dir(name),
						"-o", `outrider:dataset={"kind":"volume"}`, full)
				})
			}, func() time.Duration {
				name := c.name()
				return took(func() { c.create(b, name, limits) })
			}
	})
}

// BenchmarkZFS_Discard compares the time of a move to the trash with the time of "zfs unmount" and "zfs rename".
func BenchmarkZFS_Discard(b *testing.B) {
	compare(b, func(b *testing.B, c column) (bare, own func() time.Duration) {
		used := func() (name string) { // writing the file ensures that zfs-fuse has mounted the dataset
			name = c.name()
			write(b, c.create(b, name, engine.Limits{Data: 32 * mib}), "file", "x")
			return name
		}
		return func() time.Duration {
				name, to := used(), c.name()
				c.cleanUp(b, to)
				return took(func() {
					run(b, c.pool.Program, "unmount", filepath.Join(c.pool.Root, name))
					rename := func() error { // may fail at first, while zfs-fuse is busy
						return exec.Command(c.pool.Program, "rename", filepath.Join(c.pool.Root, name),
							filepath.Join(c.pool.Root, to)).Run()
					}
					for err := rename(); err != nil; err = rename() {
						time.Sleep(time.Millisecond)
					}
				})
			}, func() time.Duration {
				name := used()
				return took(func() { must.NoError(b, c.Discard(b.Context(), name, time.Hour)) })
			}
	})
}

// compare reports the median times of two functions, and their ratio.
func compare(b *testing.B, prepare func(b *testing.B, c column) (bare, own func() time.Duration)) {
	if unix.Geteuid() != 0 {
		b.Skip("only root makes file systems")
	}
	for kind, open := range columns() {
		b.Run(kind, func(b *testing.B) {
			c := open(b)
			b.Cleanup(func() { // destroys all datasets, even those in the trash
				all, err := c.List(context.Background())
				must.NoError(b, err)
				for _, d := range all {
					must.NoError(b, c.Destroy(context.Background(), d.Name))
				}
			})
			c.create(b, c.name(), engine.Limits{}) // makes the parents, which are not measured
			bare, own := prepare(b, c)
			var of [2][]time.Duration
			for b.Loop() {
				of[0] = append(of[0], bare())
				of[1] = append(of[1], own())
			}
			for _, all := range of {
				slices.Sort(all)
			}
			bareMedian, ownMedian := of[0][len(of[0])/2], of[1][len(of[1])/2]
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(bareMedian.Microseconds())/1000, "ms-bare")
			b.ReportMetric(float64(ownMedian.Microseconds())/1000, "ms-engine")
			b.ReportMetric(float64(ownMedian)/float64(bareMedian), "ratio")
		})
	}
}

func took(do func()) time.Duration {
	start := time.Now()
	do()
	return time.Since(start)
}
