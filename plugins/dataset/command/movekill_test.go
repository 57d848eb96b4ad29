// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/dataset/engine"
	"github.com/outrider-dev/outrider/plugins/dataset/simulate"
	"github.com/outrider-dev/outrider/plugins/dataset/simulate/simulatetest"
)

// A volume is moved to and fro, each time killed at any moment. MOVES says how often; the promise
// is for 100.
func TestMove_SurvivesKills(t *testing.T) {
	testsupport.Long(t, "repeats")
	killedMoves.on(t, "btrfs")
}
func TestMove_SurvivesKillsWithZFSFuse(t *testing.T) {
	testsupport.Long(t, "repeats, and zfs-fuse takes its time")
	killedMoves.on(t, "zfs-fuse")
}

var killedMoves = cases{"moves": func(t *testing.T, n *node) {
	moves, err := strconv.Atoi(os.Getenv("MOVES"))
	if err != nil {
		moves = 8
	}
	c := n.cluster()
	v := c.create("data")
	v.fill("a", 16*mib)
	typical := 2 * time.Second
	for range moves {
		v.fill("b", mib)
		sum := v.sum()
		started := time.Now()
		if !c.interrupted(time.Duration(rand.Int64N(int64(typical)))) {
			typical = time.Since(started) // the next ones are killed earlier
		}
		c.from.does(c.args()...)
		v = c.arrived()
		must.EqOp(t, sum, v.sum())
		must.Eq(t, []string{"default/" + v.id}, c.to.live())
		must.SliceEmpty(t, c.from.live())
		c.from.does("trash", "empty")
		must.MapEmpty(t, c.from.all())
		c.from, c.to = c.to, c.from
	}
}}

// interrupted moves the volume and kills that after a while, with what it has started or alone.
// It reports whether it was killed.
func (c *cluster) interrupted(after time.Duration) bool {
	c.from.t.Helper()
	cmd := exec.Command(binary(c.from.t), append(c.args(), "-file", c.from.file())...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+c.URL)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must.NoError(c.from.t, cmd.Start())
	timer := time.AfterFunc(after, func() {
		pid := cmd.Process.Pid
		if rand.IntN(2) == 0 {
			pid = -pid
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
	})
	_ = cmd.Wait()
	timer.Stop()
	return cmd.ProcessState.ExitCode() < 0
}

// live are the datasets outside of the trash.
func (n *node) live() (names []string) {
	for name := range n.all() {
		if !engine.InTrash(name) {
			names = append(names, name)
		}
	}
	return names
}

var part = regexp.MustCompile(`: (part 1|the last part), (.*) in ([0-9.]+) s\.`)

// BenchmarkMove_LastPart moves 1 GiB, of which the job changes 10 MiB when it is stopped: what the
// job waits for is the last part.
func BenchmarkMove_LastPart(b *testing.B) {
	for _, kind := range []string{"btrfs", "zfs-fuse"} {
		b.Run(kind, func(b *testing.B) {
			for b.Loop() {
				lastPart(b, kind)
			}
		})
	}
}

func lastPart(b *testing.B, kind string) {
	pool := simulatetest.Sized(b, kind, 4<<30)
	n := newNode(b, pool)
	n.other = func() simulate.Pool { return otherPool(b, pool, 4<<30) }
	n.write(strings.Replace(options, `"64MiB"`, `"2GiB"`, 1))
	c := n.cluster()
	v := c.create("data")
	for i := range 64 {
		v.fill(strconv.Itoa(i), 16*mib)
	}
	job := &api.Job{ID: new("web"), Stop: new(false), JobModifyIndex: new(uint64(1)), Version: new(uint64(0))}
	c.jobs["web"], c.claims["data"] = job, "web"
	c.stopped = func() { v.fill("0", 10*mib) }
	got := n.does(c.args("-live")...)
	seconds := map[string]float64{}
	for _, m := range part.FindAllStringSubmatch(got.stderr, -1) {
		seconds[m[1]], _ = strconv.ParseFloat(m[3], 64)
		b.Log(m[0])
	}
	ratio := seconds["the last part"] / seconds["part 1"]
	b.ReportMetric(ratio, "last/full")
	b.ReportMetric(seconds["part 1"], "full-s")
	b.ReportMetric(seconds["the last part"], "last-s")
	b.ReportMetric(0, "ns/op")
	c.arrived()
}
