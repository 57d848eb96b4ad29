// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
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

// podmanHost is a host with podman, which has images and containers of the test only.
type podmanHost struct {
	*remoteHost
	env map[string]string // environment of each podman
}

// preparePodman makes an image with busybox, as in the example's image. Only this host's processes see the mounts. They
// are needed because podman's image cache has a fixed path, and because with cgroup v1, crun wants a v2 hierarchy
// without controllers, or none.
const preparePodman = `set -e
mkdir -p /var/lib/containers
mount -t tmpfs none /var/lib/containers
controllers=/sys/fs/cgroup/unified/cgroup.controllers
if [ -e $controllers ] && [ -n "$(cat $controllers)" ]; then umount /sys/fs/cgroup/unified; fi
mkdir -p image/bin
cp "$(command -v busybox)" image/busybox
for name in $(busybox --list); do ln -s ../busybox image/bin/$name; done
tar -C image -c . | podman import --quiet - docker.io/library/busybox`

func newPodmanHost(t *testing.T, h *remoteHost) *podmanHost {
	t.Helper()
	dir := filepath.Join(h.dir, "podman")
	must.NoError(t, os.Mkdir(dir, 0o700))
	p := &podmanHost{remoteHost: h, env: map[string]string{}}
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
	return p
}

// ssh runs a script on the host, in the directory of podman's files, and returns its output.
func (p *podmanHost) ssh(t *testing.T, script string) string {
	t.Helper()
	for name, value := range p.env {
		script = "export " + name + "=" + value + "\n" + script
	}
	s := p.server
	cmd := exec.Command("ssh", "-F", "none", "-q", "-i", s.KeyFile, "-p", strconv.Itoa(s.Port),
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", s.User+"@"+s.Host,
		"cd "+filepath.Join(p.dir, "podman")+"\n"+script)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	must.NoError(t, err, must.Sprint(script, stderr.String()))
	return strings.TrimSpace(string(out))
}

// container is podman's record of a running container.
type container struct {
	id          string
	pid, conmon int
	started     string
}

func (p *podmanHost) container(t *testing.T, name string) container {
	t.Helper()
	format := "{{.Id}} {{.State.Pid}} {{.State.ConmonPid}} {{json .State.StartedAt}}"
	var c container
	_, err := fmt.Sscan(p.ssh(t, "podman inspect --format '"+format+"' "+name), &c.id, &c.pid, &c.conmon, &c.started)
	must.NoError(t, err)
	return c
}

// left lists the leftovers of containers: records of podman and crun, and mounts.
func (p *podmanHost) left(t *testing.T) string {
	t.Helper()
	return p.ssh(t, `podman ps --all --quiet
for id in $(podman ps --all --quiet --no-trunc); do ls -d /run/crun/$id; done
grep -E "$PWD/root/overlay(-containers)?/[^ ]+/(merged|shm)" /proc/self/mountinfo || true`)
}

// containerJob returns the job of the example, and its arguments up to the image.
func containerJob(t *testing.T, n *node) (j *api.Job, args []string) {
	t.Helper()
	text, err := os.ReadFile("../../plugins/remote/example/container.nomad.hcl")
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

// contain turns a task into a container with the flags of the example, in which a shell runs a script. Paths of the
// host are mounted in it.
func (p *podmanHost) contain(t *testing.T, n *node, task *api.Task, script string, paths ...string) {
	t.Helper()
	_, args := containerJob(t, n)
	flags, image := args[:len(args)-1], args[len(args)-1]
	for _, path := range paths {
		flags = append(flags, "--volume="+path+":"+path)
	}
	task.SetConfig("command", "podman")
	task.SetConfig("args", append(flags, image, "sh", "-c", script))
	task.Env, task.KillSignal, task.Resources.MemoryMB = maps.Clone(p.env), "SIGTERM", new(128)
}

// TestRemote_ContainersAreTasks runs the container example, and other containers with its flags.
func TestRemote_ContainersAreTasks(t *testing.T) {
	needRootAgent(t)
	testsupport.Long(t, "containers and a hand-over")
	testsupport.NeedPrograms(t, "podman", "crun", "catatonit", "busybox", "ssh")
	t.Parallel()
	var host *podmanHost
	c := newCluster(t, 2, func(c *cluster) string {
		host = newPodmanHost(t, c.host)
		return ""
	})
	example, _ := containerJob(t, c.server)
	run := func(t *testing.T, script string, edit ...func(*api.Job, *api.Task)) *alloc {
		t.Helper()
		contained := func(_ *api.Job, task *api.Task) {
			host.contain(t, c.server, task, script)
			task.Resources.MemoryMB = new(64)
		}
		return c.server.submit(t, job(t, nil, append([]func(*api.Job, *api.Task){onBox, contained}, edit...)...))
	}

	t.Run("the example, drained", func(t *testing.T) {
		const name = "container-main-0"
		task := example.TaskGroups[0].Tasks[0]
		task.Name = "main"
		for variable, value := range host.env {
			task.Env[variable] = value
		}
		example.TaskGroups[0].Migrate = migrate()
		s := &survivor{c: c, job: example}
		s.register(t)
		a := s.current(t)
		a.says(t, "stdout", "hello 2\n")
		was := host.container(t, name)
		code, stdout, stderr := a.session(t, false, nil, nil, "podman", "exec", name, "sh", "-c",
			"cat /local/last; cat /proc/1/cmdline; exit 5")
		test.Eq(t, 5, code, test.Sprint(stderr))
		test.StrContains(t, stdout, "hello ")
		test.StrContains(t, stdout, "podman-init")

		a.n.drain(t, time.Hour)
		b := s.current(t, a.n)
		must.Eq(t, was, host.container(t, name), must.Sprint(s.story()))
		b.says(t, "stdout", "hello 1\n")
		lines := strings.Count(b.output(t, "stdout"), "\n")
		b.says(t, "stdout", fmt.Sprintf("\nhello %d\n", lines+2))
		a.n.eligible(t)

		b.stop(t)
		test.Eq(t, "exit 143", b.outcome(), test.Sprint(b.story()))
		test.Eq(t, "", host.left(t))
	})
	t.Run("an exit code", func(t *testing.T) {
		a := run(t, "echo out; echo err >&2; exit 7")
		must.Eq(t, "exit 7", a.ended(t), must.Sprint(a.story(), a.output(t, "stderr")))
		a.says(t, "stdout", "out\n")
		a.says(t, "stderr", "err\n")
		test.Eq(t, "", host.left(t))
	})
	t.Run("a memory limit", func(t *testing.T) {
		a := run(t, "head -c 300000000 /dev/zero | tail -c 300000000 >/dev/null")
		must.Eq(t, "oom", a.ended(t), must.Sprint(a.story()))
		test.NoError(t, a.tells("OOM: killed at 64 MiB of memory"))
	})
	t.Run("signals", func(t *testing.T) {
		a := run(t, "trap 'echo got it' USR1; echo ready; while :; do sleep 0.1; done")
		a.says(t, "stdout", "ready\n")
		must.NoError(t, c.server.Client().Allocations().Signal(a.stub(t), nil, "main", "SIGUSR1"))
		a.says(t, "stdout", "got it\n")
		a.stop(t)
		test.Eq(t, "exit 143", a.outcome(), test.Sprint(a.story()))
	})
	t.Run("a kill timeout, and the next container of that name", func(t *testing.T) {
		named := func(j *api.Job, _ *api.Task) { j.Name = new("again") }
		a := run(t, "trap '' TERM; echo ready; while :; do sleep 0.1; done", named,
			func(_ *api.Job, task *api.Task) { task.KillTimeout = new(time.Second) })
		a.says(t, "stdout", "ready\n")
		was := host.container(t, "again-main-0")
		a.stop(t)
		test.Eq(t, "signal 9", a.outcome())
		for _, pid := range []int{was.pid, was.conmon} {
			_, err := readProc(pid)
			test.ErrorIs(t, err, fs.ErrNotExist)
		}
		b := run(t, "echo again", named, func(j *api.Job, _ *api.Task) {
			j.TaskGroups[0].RestartPolicy.Attempts = new(1) // podman removes the record of the first one
		})
		must.Eq(t, "exit 0", b.ended(t), must.Sprint(b.story(), b.output(t, "stderr")))
		b.says(t, "stdout", "again\n")
		test.Eq(t, "", host.left(t))
	})
}
