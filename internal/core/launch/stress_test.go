// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// Each start has its own combination of settings, so that a setting that leaks into another start is detected.
func TestLaunch_RunsAThousandConcurrentStarts(t *testing.T) {
	testsupport.NeedRoot(t)
	const starts, atOnce = 1000, 8
	one := func(i int) error {
		uid := uint32(10_000 + i)
		if i%5 == 0 {
			uid = 0
		}
		umask := uint32(i) % 0o100
		nice := i % 20
		nofile := 64 + i
		script := `read -r s < /proc/$$/stat; set -- ${s##*)}; echo $(umask) ${17} $(ulimit -Sn) $(id -u) $(id -g) $(cat ` +
			`/proc/$$/oom_score_adj) $N; exit $N`
		spec := shell(script)
		c := &spec.Command
		c.Env = append(c.Env, fmt.Sprintf("N=%d", i%200))
		c.User = &task.User{UID: uid, GID: uid}
		c.Umask = &umask
		c.Nice = nice
		c.OOMScoreAdj = i
		c.Rlimits = []task.Rlimit{{Resource: unix.RLIMIT_NOFILE, Soft: uint64(nofile), Hard: 2000}}
		e, err := run(spec, nil)
		if err != nil {
			return err
		}
		want := fmt.Sprintf("%04o %d %d %d %d %d %d", umask, nice, nofile, uid, uid, i, i%200)
		if got := strings.TrimSpace(e.out); got != want {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		if e.status.ExitStatus() != i%200 {
			return fmt.Errorf("exit code %d, want %d", e.status.ExitStatus(), i%200)
		}
		return nil
	}
	batch := func(from, to int) {
		next := make(chan int)
		var wg sync.WaitGroup
		for range atOnce {
			wg.Go(func() {
				for i := range next {
					test.NoError(t, one(i), test.Sprintf("start %d", i))
				}
			})
		}
		for i := from; i < to; i++ {
			next <- i
		}
		close(next)
		wg.Wait()
	}
	batch(0, 50) // after this, the runtime has created its threads
	fds, threads, children := resources(t)
	batch(50, starts)
	fdsAfter, threadsAfter, childrenAfter := resources(t)
	test.False(t, fdsAfter > fds, test.Sprintf("%d file descriptors before, %d after", fds, fdsAfter))
	// concurrent wait4 calls may take a few more threads, but not one per start
	test.False(t, threadsAfter > threads+atOnce,
		test.Sprintf("%d threads before, %d after", threads, threadsAfter))
	test.Eq(t, children, childrenAfter, test.Sprintf("children left: %q, before", childrenAfter))
	must.Eq(t, 0o022, unix.Umask(0o022), must.Sprint("a start changed the supervisor"))
	test.Eq(t, 0, os.Geteuid(), test.Sprint("a start changed the supervisor"))
}
