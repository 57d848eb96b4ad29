// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestMutate_ReachesNothingOfTheMachine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make namespaces")
	}
	mine, err := os.MkdirTemp("/var/tmp", "mutate") // /tmp is a new one inside, and this repository may be in it
	must.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(mine) })
	const look = `
		touch "$WRITABLE/wrote"
		touch /etc/outrider-mutant 2>/dev/null && echo a file of the machine can be made
		sleep 600 & # it ends with this
		# a process of another PID namespace is 0: there is one, unshare
		find /sys/fs/cgroup -name cgroup.procs | while read -r procs; do
			[ $(grep -cx 0 $procs) -le 1 ] || echo strangers are in $procs
		done
		echo pid $$`
	cmd := exec.Command("sh", "mutate.sh", "sh", "-c", look)
	cmd.Env = append(os.Environ(), "WRITABLE="+mine)
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	test.Eq(t, "pid 1\n", string(out))
	test.FileExists(t, filepath.Join(mine, "wrote"))
	test.FileNotExists(t, "/etc/outrider-mutant")
	left, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/outrider-mutate-%d", cmd.Process.Pid))
	must.NoError(t, err)
	test.SliceEmpty(t, left)
}
