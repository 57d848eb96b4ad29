// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// containerHost is a host with podman or Docker, which has only the test's images and containers.
type containerHost struct {
	*remoteHost
	files   string            // the directory of the engine's files
	env     map[string]string // environment of the engine's commands
	engine  string            // the engine's program
	example string            // the file of the example job
	inspect string            // the format of a container's record, see container
	left    string            // a script that lists leftovers of containers
	oom     string            // the outcome of a container that runs out of memory
}

// makeImage makes the examples' image with this machine's busybox.
func (h *containerHost) makeImage(t *testing.T) {
	t.Helper()
	h.ssh(t, `set -e
mkdir -p image/bin
cp "$(command -v busybox)" image/busybox
for name in $(busybox --list); do ln -s ../busybox image/bin/$name; done
tar -C image -c . | `+h.engine+` import - docker.io/library/busybox`)
}

// preparePodman changes mounts for the processes on this host only. podman's image cache has a fixed path, so it
// becomes a tmpfs. With cgroup v1, crun refuses a v2 hierarchy that has controllers, so preparePodman unmounts it.
const preparePodman = `set -e
mkdir -p /var/lib/containers
mount -t tmpfs none /var/lib/containers
controllers=/sys/fs/cgroup/unified/cgroup.controllers
if [ -e $controllers ] && [ -n "$(cat $controllers)" ]; then umount /sys/fs/cgroup/unified; fi`

// leftByPodman is a script that lists records of podman and crun, and mounts.
const leftByPodman = `podman ps --all --quiet
for id in $(podman ps --all --quiet --no-trunc); do ls -d /run/crun/$id; done
grep -E "$PWD/root/overlay(-containers)?/[^ ]+/(merged|shm)" /proc/self/mountinfo || true`

func newPodmanHost(t *testing.T, h *remoteHost) *containerHost {
	t.Helper()
	testsupport.NeedPrograms(t, "podman", "crun", "catatonit", "busybox", "ssh")
	dir := filepath.Join(h.dir, "podman")
	must.NoError(t, os.Mkdir(dir, 0o700))
	p := &containerHost{remoteHost: h, files: dir, env: map[string]string{}, engine: "podman",
		example: "container.nomad.hcl", left: leftByPodman, oom: "oom",
		inspect: "{{.Id}} {{json .State.StartedAt}} {{.State.Pid}} {{.State.ConmonPid}}"}
	for name, text := range map[string]string{
		"CONTAINERS_STORAGE_CONF": `[storage]
driver    = "overlay"
graphroot = "` + dir + `/root"
runroot   = "` + dir + `/run"
`,
		// The default limits of open files and processes may exceed those that root can set on this machine.
		"CONTAINERS_CONF": `[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
lock_type = "file"
tmp_dir   = "` + dir + `/tmp"
`,
	} {
		p.env[name] = filepath.Join(dir, name)
		must.NoError(t, os.WriteFile(p.env[name], []byte(text), 0o644))
	}
	t.Cleanup(func() { p.ssh(t, "podman rm --force --all || podman rm --force --all") })
	p.ssh(t, preparePodman)
	p.makeImage(t)
	return p
}

// ssh runs a script on the host, in the directory of the engine's files, and returns its output.
func (h *containerHost) ssh(t *testing.T, script string) string {
	t.Helper()
	for name, value := range h.env {
		script = "export " + name + "=" + value + "\n" + script
	}
	s := h.server
	cmd := exec.Command("ssh", "-F", "none", "-q", "-i", s.KeyFile, "-p", strconv.Itoa(s.Port),
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", s.User+"@"+s.Host,
		"cd "+h.files+"\n"+script)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	must.NoError(t, err, must.Sprint(script, stderr.String()))
	return strings.TrimSpace(string(out))
}

// container is an engine's record of a running container: identity, start time, and process IDs.
type container []string

func (h *containerHost) container(t *testing.T, name string) container {
	t.Helper()
	return strings.Fields(h.ssh(t, h.engine+" inspect --format '"+h.inspect+"' "+name))
}

// isGone checks that no process of the container is alive.
func (c container) isGone(t *testing.T) {
	t.Helper()
	for _, process := range c[2:] {
		pid, err := strconv.Atoi(process)
		must.NoError(t, err)
		_, err = readProc(pid)
		test.ErrorIs(t, err, fs.ErrNotExist)
	}
}

// hasNothing waits until no leftovers of containers exist. An engine removes a killed container with a delay.
func (h *containerHost) hasNothing(t *testing.T) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		if left := h.ssh(t, h.left); left != "" {
			return errors.New(left)
		}
		return nil
	})
}

// containerJob returns the example's job, and the arguments of its task up to the image.
func (h *containerHost) containerJob(t *testing.T, n *node) (j *api.Job, args []string) {
	t.Helper()
	text, err := os.ReadFile("../../plugins/remote/example/" + h.example)
	must.NoError(t, err)
	j, err = n.Client().Jobs().ParseHCL(string(text), true)
	must.NoError(t, err)
	for _, arg := range j.TaskGroups[0].Tasks[0].Config["args"].([]any) {
		args = append(args, arg.(string))
	}
	image := slices.Index(args, "docker.io/library/busybox")
	must.Positive(t, image)
	return j, args[:image+1]
}

// contain makes a task run a shell script in a container, with the flags of the example and with these paths of the
// host.
func (h *containerHost) contain(t *testing.T, n *node, task *api.Task, script string, paths ...string) {
	t.Helper()
	example, args := h.containerJob(t, n)
	flags, image := args[:len(args)-1], args[len(args)-1]
	for _, path := range paths {
		flags = append(flags, "--volume="+path+":"+path)
	}
	task.SetConfig("command", example.TaskGroups[0].Tasks[0].Config["command"])
	task.SetConfig("args", append(flags, image, "sh", "-c", script))
	task.Env, task.KillSignal, task.Resources.MemoryMB = maps.Clone(h.env), "SIGTERM", new(128)
}

// TestRemote_RunsContainersAsTasks runs the examples with containers, and other containers with the same flags.
func TestRemote_RunsContainersAsTasks(t *testing.T) {
	needRootAgent(t)
	testsupport.Long(t, "containers")
	t.Parallel()
	t.Run("podman", func(t *testing.T) {
		t.Parallel()
		testContainers(t, newPodmanHost)
	})
	t.Run("docker", func(t *testing.T) {
		t.Parallel()
		testDocker(t)
	})
}

// containerCluster is a cluster whose tasks are containers.
type containerCluster struct {
	*cluster
	host *containerHost
}

// run submits a job with one container, in which a shell runs a script.
func (c *containerCluster) run(t *testing.T, script string, edit ...func(*api.Job, *api.Task)) *alloc {
	t.Helper()
	contained := func(_ *api.Job, task *api.Task) {
		c.host.contain(t, c.server, task, script)
		task.Resources.MemoryMB = new(64)
	}
	return c.server.submit(t, job(t, nil, append([]func(*api.Job, *api.Task){onBox, contained}, edit...)...))
}

func testContainers(t *testing.T, start func(*testing.T, *remoteHost) *containerHost) *containerCluster {
	t.Helper()
	c := &containerCluster{}
	c.cluster = newCluster(t, 1, func(of *cluster) string {
		c.host = start(t, of.host)
		return ""
	})
	host := c.host
	example, _ := host.containerJob(t, c.server)

	t.Run("the example", func(t *testing.T) {
		task := example.TaskGroups[0].Tasks[0]
		task.Name = "main"
		for variable, value := range host.env {
			task.Env[variable] = value
		}
		a := c.nodes[0].submit(t, example)
		a.says(t, "stdout", "hello 2\n")
		name := *example.ID + "-main-0"
		code, stdout, stderr := a.session(t, false, nil, nil, host.engine, "exec", name, "sh", "-c",
			"cat /local/last; cat /proc/1/cmdline; exit 5")
		test.Eq(t, 5, code, test.Sprint(stderr))
		test.StrContains(t, stdout, "hello ")
		test.StrContains(t, stdout, host.engine+"-init")

		a.stop(t)
		test.Eq(t, "exit 143", a.outcome(), test.Sprint(a.story()))
		host.hasNothing(t)
	})
	t.Run("an exit code", func(t *testing.T) {
		a := c.run(t, "echo out; echo err >&2; exit 7")
		must.Eq(t, "exit 7", a.ended(t), must.Sprint(a.story(), a.output(t, "stderr")))
		a.says(t, "stdout", "out\n")
		a.says(t, "stderr", "err\n")
		host.hasNothing(t)
	})
	t.Run("a memory limit", func(t *testing.T) {
		a := c.run(t, "head -c 300000000 /dev/zero | tail -c 300000000 >/dev/null")
		must.Eq(t, host.oom, a.ended(t), must.Sprint(a.story()))
		if host.oom == "oom" {
			test.NoError(t, a.tells("OOM: killed at 64 MiB of memory"))
		}
		host.hasNothing(t)
	})
	t.Run("signals", func(t *testing.T) {
		a := c.run(t, "trap 'echo got it' USR1; echo ready; while :; do sleep 0.1; done")
		a.says(t, "stdout", "ready\n")
		must.NoError(t, c.server.Client().Allocations().Signal(a.stub(t), nil, "main", "SIGUSR1"))
		a.says(t, "stdout", "got it\n")
		a.stop(t)
		test.Eq(t, "exit 143", a.outcome(), test.Sprint(a.story()))
	})
	t.Run("a kill timeout, and the next container of that name", func(t *testing.T) {
		named := func(j *api.Job, _ *api.Task) { j.Name = new("again") }
		a := c.run(t, "trap '' TERM; echo ready; while :; do sleep 0.1; done", named,
			func(_ *api.Job, task *api.Task) { task.KillTimeout = new(time.Second) })
		a.says(t, "stdout", "ready\n")
		was := host.container(t, "again-main-0")
		a.stop(t)
		test.Eq(t, "signal 9", a.outcome())
		was.isGone(t)
		b := c.run(t, "echo again", named, func(j *api.Job, _ *api.Task) {
			j.TaskGroups[0].RestartPolicy.Attempts = new(1) // a start fails while podman has the old container's record
		})
		must.Eq(t, "exit 0", b.ended(t), must.Sprint(b.story(), b.output(t, "stderr")))
		b.says(t, "stdout", "again\n")
		host.hasNothing(t)
	})
	return c
}
