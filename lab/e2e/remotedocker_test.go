// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// dockerHost is a host with its own dockerd.
type dockerHost struct {
	*containerHost
	daemon *exec.Cmd
}

// runDocker runs dockerd in a directory. Only dockerd and its containers see its network, its mounts, and its files in
// /run and /etc/docker, so it does not disturb the machine's Docker.
const runDocker = `cd "$0"
mkdir -p run
mount --bind run /run
rm -f exec/containerd/containerd.pid # dockerd would wait for a process that may be a zombie
if [ -e /etc/docker ]; then mount -t tmpfs none /etc/docker; fi
exec dockerd --host=unix://"$0"/socket --data-root="$0"/data --exec-root="$0"/exec --pidfile="$0"/pid \
	--bridge=none --iptables=false --ip6tables=false --log-level=warn --exec-opt=native.cgroupdriver=cgroupfs >>log 2>&1`

// leftByDocker is a script that lists containers, and their mounts.
const leftByDocker = `docker ps --all --quiet
grep -E "$PWD/data/overlay2/[^ ]+/merged" /proc/$(cat pid)/mountinfo || true`

func newDockerHost(t *testing.T, h *remoteHost) *dockerHost {
	t.Helper()
	testsupport.NeedPrograms(t, "docker", "dockerd", "busybox", "ssh")
	dir := filepath.Join(h.dir, "docker")
	must.NoError(t, os.Mkdir(dir, 0o700))
	d := &dockerHost{containerHost: &containerHost{remoteHost: h, files: dir, engine: "docker", left: leftByDocker,
		env: map[string]string{"DOCKER_HOST": "unix://" + dir + "/socket"}, example: "docker.nomad.hcl",
		inspect: "{{.Id}} {{json .State.StartedAt}} {{.State.Pid}}", oom: "oom"}}
	if testsupport.Exists("/sys/fs/cgroup/memory") {
		d.oom = "exit 137" // Docker removes the cgroup that counted the OOM kill
	}
	d.start(t)
	t.Cleanup(func() {
		d.end(t, unix.SIGTERM)
		test.SliceEmpty(t, testsupport.Processes(func(args []string) bool {
			return strings.Contains(strings.Join(args, " "), dir) // dockerd, containerd, or a container's shim
		}))
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("dockerd's log:\n%s", last(string(log), 5000))
		}
		// In hierarchies of cgroup v1 that tasks do not use, Docker leaves the parents of its cgroups behind.
		parents := fmt.Sprintf("/sys/fs/cgroup/*/outrider-tasks-%.4x", sha256.Sum256([]byte(h.dir)))
		for _, pattern := range []string{parents + "/*", parents} {
			left, _ := filepath.Glob(pattern)
			for _, dir := range left {
				_ = unix.Rmdir(dir) // fails if a container's cgroup is left, which the cluster reports
			}
		}
	})
	d.makeImage(t)
	return d
}

func dockerContainers(t *testing.T, h *remoteHost) *containerHost {
	return newDockerHost(t, h).containerHost
}

// start starts dockerd and waits until it responds.
func (d *dockerHost) start(t *testing.T) {
	t.Helper()
	d.daemon = exec.Command("unshare", "--mount", "--net", "sh", "-ec", runDocker, d.files)
	must.NoError(t, d.daemon.Start())
	testsupport.Within(t, time.Minute, func() error {
		return exec.Command("docker", "--host", d.env["DOCKER_HOST"], "version").Run()
	})
}

// end ends dockerd by a signal.
func (d *dockerHost) end(t *testing.T, sig os.Signal) {
	t.Helper()
	must.NoError(t, d.daemon.Process.Signal(sig))
	_ = d.daemon.Wait() // its status does not matter
}

// testDocker runs the tests that also run for podman, and tests for Docker alone.
func testDocker(t *testing.T) {
	var host *dockerHost
	c := testContainers(t, func(t *testing.T, h *remoteHost) *containerHost {
		host = newDockerHost(t, h)
		return host.containerHost
	})
	t.Run("a limit of processes", func(t *testing.T) {
		a := c.run(t, "for i in $(seq 100); do sleep 1000 & done", func(_ *api.Job, task *api.Task) {
			task.SetConfig("pids_limit", 50)
		})
		must.Eq(t, "exit 2", a.ended(t), must.Sprint(a.story(), a.output(t, "stderr")))
		a.says(t, "stderr", "can't fork")
	})
	t.Run("a crash of dockerd", func(t *testing.T) {
		a := c.run(t, "echo ready; while :; do sleep 0.1; done", func(j *api.Job, _ *api.Task) { j.Name = new("crash") })
		a.says(t, "stdout", "ready\n")
		was := host.container(t, "crash-main-0")
		host.end(t, unix.SIGKILL)
		test.Eq(t, "exit 125", a.ended(t), test.Sprint(a.story()))
		was.isGone(t)
		host.start(t)
		host.hasNothing(t)
	})
}
