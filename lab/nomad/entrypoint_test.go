// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestEntrypoint_StartsAnAgentThatIsReleasedAtOnce(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{
		"entrypoint": strings.NewReplacer("/sys/fs/cgroup", path("cgroup"), "/dev/shm", dir, "/var/lib", dir,
			"/usr/local/lib", dir).Replace(entrypoint),
		"bin/nomad": "#!/bin/sh\nexec sleep 600\n",
		"bin/mount": "#!/bin/sh\n",
		// StopAgent sees the pid file go, and StartAgent is there before the next line
		"bin/rm": fmt.Sprintf("#!/bin/sh\n/bin/rm \"$@\"\ncase \"$*\" in *agent.pid) /bin/rm -f %s;; esac\n",
			path("nomad-agent.hold")),
	} {
		must.NoError(t, os.MkdirAll(filepath.Dir(path(name)), 0o755))
		must.NoError(t, os.WriteFile(path(name), []byte(text), 0o755))
	}
	cmd := exec.Command("/bin/sh", path("entrypoint"))
	cmd.Env = append(os.Environ(), "PATH="+path("bin")+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })

	started := func(before int) (pid int) {
		t.Helper()
		for timeout := time.After(time.Minute); ; {
			b, _ := os.ReadFile(path("nomad-agent.pid"))
			if fmt.Sscan(string(b), &pid); pid != 0 && pid != before {
				return pid
			}
			select {
			case err := <-ended:
				t.Fatalf("it has ended: %v", err)
			case <-timeout:
				t.Fatal("no agent is started")
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	first := started(0)
	must.NoError(t, os.WriteFile(path("nomad-agent.hold"), nil, 0o644))
	must.NoError(t, syscall.Kill(first, syscall.SIGKILL))
	started(first)
}
