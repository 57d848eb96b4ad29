// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

// A volume is moved to and fro, each time killed at any moment. MOVES says how often; the promise
// is for 100.
func TestMove_SurvivesKills(t *testing.T) {
	testsupport.Long(t, "repeats, and zfs-fuse takes its time")
	killedMoves.run(t)
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
