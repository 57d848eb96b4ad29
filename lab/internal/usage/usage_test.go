// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usage

import (
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
)

func TestOf_MeasuresOnlySelectedRunningProcesses(t *testing.T) {
	ended := exec.Command("/bin/true")
	must.NoError(t, ended.Run())
	other := exec.Command("/bin/sleep", "1000")
	must.NoError(t, other.Start())
	defer other.Wait()
	defer other.Process.Kill()
	ids := []task.Identity{{PID: ended.Process.Pid}, {PID: other.Process.Pid}, {PID: os.Getpid()}}
	list, err := Of(ids, func(pid int, args []string) bool {
		return pid != other.Process.Pid && slices.Equal(args, os.Args)
	})
	must.NoError(t, err)
	must.Len(t, 1, list)
	test.Eq(t, os.Getpid(), list[0].PID)
	test.Eq(t, os.Args, list[0].Args)
	test.Greater(t, 1<<20, list[0].Memory)
	memory, cpu := Total(append(list, Process{Memory: 5, CPU: 7}))
	test.Eq(t, list[0].Memory+5, memory)
	test.Eq(t, list[0].CPU+7, cpu)
}
