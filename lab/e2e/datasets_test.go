// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// datasetConfig configures the dataset plugin. Both of its roles read one file.
const datasetConfig = `
file  = "${host_volume_plugin_dir}/dataset.hcl"
sweep = "500ms"

api {
  address = "http://127.0.0.1:${http_port}"
}
`

// class has the options of each class that pool makes.
const class = `
  allow            = ["mode"]
  min_capacity     = "16MiB"
  default_capacity = "32MiB"
  on_delete        = "destroy"

  slots {
    count    = 4
    capacity = "32MiB"
  }
`

// zfsFuse is a pool in a file. Tests that run in parallel share it, because only one zfs-fuse can run.
var zfsFuse struct {
	sync.Mutex
	users, made int
	dir         string
	zfsfuse.Pool
}

// pool makes classes in zfsFuse, which stays at least until the end of the test, and returns their configuration.
func pool(t *testing.T, classes ...string) string {
	t.Helper()
	needRootAgent(t)
	z := &zfsFuse
	z.Lock()
	defer z.Unlock()
	if z.users == 0 {
		startZFSFuse(t)
	}
	z.users++
	t.Cleanup(func() { endZFSFuse(t) })
	z.made++
	root := fmt.Sprintf("%s/%d", z.Root, z.made)
	zfs(t, "create", "-o", "mountpoint=none", root)
	text := fmt.Sprintf("zfs = %q\n", z.Program)
	for _, name := range classes {
		zfs(t, "create", "-o", "mountpoint=none", root+"/"+name)
		text += fmt.Sprintf("class %q {\n  root = %q\n%s}\n", name, root+"/"+name, class)
	}
	return text
}

// startZFSFuse makes the pool. The caller must hold the lock of zfsFuse.
func startZFSFuse(t *testing.T) {
	t.Helper()
	z := &zfsFuse
	z.dir = mkdir(t)
	var err error
	z.Pool, err = zfsfuse.Make(t.Context(), z.dir+"/pool", zfsfuse.Options{Size: 4 << 30})
	if errors.Is(err, zfsfuse.ErrMissing) {
		t.Skip(err)
	}
	must.NoError(t, err)
}

// endZFSFuse removes the pool when no test uses it anymore.
func endZFSFuse(t *testing.T) {
	z := &zfsFuse
	z.Lock()
	defer z.Unlock()
	z.users--
	if z.users > 0 {
		return
	}
	test.NoError(t, errors.Join(zfsfuse.Remove(z.dir+"/pool"), os.RemoveAll(z.dir)))
}

// zfs runs the zfs command of zfsFuse.
func zfs(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command(zfsFuse.Program, args...).CombinedOutput()
	must.NoError(t, err, must.Sprintf("zfs %q: %s", args, out))
}

// ownMounts is an environment variable that is set if the tests have their own mount namespace.
const ownMounts = "OUTRIDER_E2E_MOUNTS"

// shareMounts executes the tests again in their own mount namespace if the machine's / is mounted private, as in some
// containers. There, each process in another mount namespace would keep the mounts that it was started with, and no
// dataset could be unmounted. From the tests' namespace, unmounts propagate to the namespaces made from it.
func shareMounts() error {
	if os.Geteuid() != 0 || os.Getenv(ownMounts) != "" {
		return nil
	}
	out, err := exec.Command("findmnt", "-no", "PROPAGATION", "/").Output()
	if err != nil || strings.HasPrefix(string(out), "shared") {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return err
	}
	const mounts = `for dir in /run/zfs /run/lock/zfs; do mkdir -p $dir; mount -t tmpfs tmpfs $dir; done; exec "$@"`
	return syscall.Exec(unshare, append([]string{"unshare", "--mount", "--propagation=shared", "sh", "-ec", mounts, "sh",
		exe}, os.Args[1:]...), append(os.Environ(), ownMounts+"=1"))
}

func (n *node) isDatasetPlugin(p proc) bool {
	return len(p.args) == 1 && p.args[0] == filepath.Join(n.PluginDir(), agent.DevicePrefix+"dataset")
}

// volume makes a volume that every user can write to, and deletes it at the end of the test.
func (n *node) volume(t *testing.T, name string) (id string) {
	t.Helper()
	made, err := nomadtest.CreateVolume(n.Client(), &api.HostVolume{
		Name: name, NodeID: n.id(), Parameters: map[string]string{"class": "fast", "mode": "0777"},
		RequestedCapabilities: []*api.HostVolumeCapability{{
			AttachmentMode: api.HostVolumeAttachmentModeFilesystem,
			AccessMode:     api.HostVolumeAccessModeSingleNodeMultiWriter,
		}},
	})
	must.NoError(t, err)
	id = made.ID
	t.Cleanup(func() { n.deleteVolume(t, id) })
	n.ready(t, id)
	return id
}

// deleteVolume deletes a volume if it exists.
func (n *node) deleteVolume(t *testing.T, id string) {
	t.Helper()
	testsupport.Within(t, 2*time.Minute, func() error { // a deletion fails while the volume's jobs are being stopped
		_, _, err := n.Client().HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: id}, nil)
		if err != nil && strings.Contains(err.Error(), "no such volume") {
			return nil
		}
		return err
	})
}

// useDatasets is a script that prints, for each dataset of its task, whether an earlier run has used it.
const useDatasets = `for d in /data /scratch; do
  [ -e $d ] || continue
  echo "$d is $(stat -f -c %T $d), was $(cat $d/$NOMAD_JOB_ID 2>/dev/null || echo new)"
  echo used > $d/$NOMAD_JOB_ID
done
echo ready
exec sleep 1000
`

// datasetsUsed returns the expected output of useDatasets.
func datasetsUsed(was string, dirs ...string) (out string) {
	for _, d := range dirs {
		out += d + " is fuseblk, was " + was + "\n"
	}
	return out + "ready\n"
}

// Tasks of our drivers have volumes, slots or both, even after a restart of the agent and then of the task.
func TestDatasets_AreInTasks(t *testing.T) {
	t.Parallel()
	static := mkdir(t)
	must.NoError(t, os.WriteFile(filepath.Join(static, "file"), []byte("of the host\n"), 0o644))
	for driver, o := range map[string]struct {
		nodeOptions
		sh func(script string) conf
	}{
		"exec-lite": {sh: sh, nodeOptions: nodeOptions{config: nomadtest.Chroot(t, nomadtest.Files(t, "sh", "cat", "stat"))}},
		"python": {
			nodeOptions: nodeOptions{python: &pythonOptions{}},
			sh: func(script string) conf {
				return conf{"code": fmt.Sprintf("import os\nos.execv('/bin/sh', ['sh', '-c', %q])", script)}
			},
		},
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			o.classes = pool(t, "fast")
			o.config += fmt.Sprintf("client {\n  host_volume \"static\" {\n    path = %q\n  }\n}\n", static)
			n := newNode(t, o.nodeOptions)
			n.volume(t, "data")
			run := func(script string, edit ...func(*api.Job, *api.Task)) *alloc {
				return n.submit(t, job(t, o.sh(script), append([]func(*api.Job, *api.Task){asDriver(driver), withMemory(48)},
					edit...)...))
			}
			volume, slot := nomadtest.WithVolume("data", "/data"), withDevice("zfs/dataset/fast")
			tasks := []struct {
				name  string
				alloc *alloc
				want  []string
			}{
				{name: "volume", want: []string{"/data"}, alloc: run(useDatasets, asService, volume)},
				{name: "slot", want: []string{"/scratch"}, alloc: run(useDatasets, asService, slot)},
				{name: "both", want: []string{"/data", "/scratch"}, alloc: run(useDatasets, asService, volume, slot)},
			}
			for _, task := range tasks {
				task.alloc.says(t, "stdout", "ready\n")
				must.Eq(t, datasetsUsed("new", task.want...), task.alloc.output(t, "stdout"), must.Sprint(task.name))
			}
			writer := run("echo of another job > /data/file", volume)
			must.Eq(t, "exit 0", writer.ended(t))
			_, _, err := n.Client().Jobs().Deregister(writer.job, true, nil)
			must.NoError(t, err)

			must.NoError(t, n.Stop(t.Context()))
			n.restart(t)
			for _, task := range tasks {
				task.alloc.held(t)
				for _, d := range task.want {
					_, out, _ := task.alloc.session(t, false, nil, nil, "stat", "-f", "-c", "%T", d)
					test.Eq(t, "fuseblk\n", out, test.Sprintf("%s after the agent's restart", task.name))
				}
				task.alloc.restartSays(t, "ready\n")
				test.Eq(t, datasetsUsed("new", task.want...)+datasetsUsed("used", task.want...), task.alloc.output(t, "stdout"),
					test.Sprintf("%s after its restart", task.name))
			}
			drivers := []string{driver}
			if driver == "exec-lite" { // volumes work with Nomad's exec, too
				drivers = append(drivers, "exec")
			}
			for _, driver := range drivers {
				reader := run("stat -f -c %T /data; cat /data/file", volume, asDriver(driver))
				must.Eq(t, "exit 0", reader.ended(t), must.Sprint(driver, ": ", reader.story()))
				test.Eq(t, "fuseblk\nof another job\n", reader.output(t, "stdout"), test.Sprint(driver))

				// a volume from the agent's configuration, mounted in the task's directory
				reader = run("cat local/static/file", nomadtest.WithVolume("static", "local/static"), asDriver(driver))
				must.Eq(t, "exit 0", reader.ended(t), must.Sprint(driver, ": ", reader.story()))
				test.Eq(t, "of the host\n", reader.output(t, "stdout"), test.Sprint(driver))
			}
			for _, task := range tasks {
				task.alloc.stop(t)
			}
		})
	}
}

// TestDatasets_AreInContainers shows the limits for Nomad's docker driver in docs/plugins/dataset.md. Volumes work. If
// the plugin mounts slots for all drivers, Nomad drops the volume of a task that has both, and the slot after restarts.
func TestDatasets_AreInContainers(t *testing.T) {
	testsupport.Long(t, "needs containers")
	if err := agent.DockerAnswers(t.Context()); err != nil {
		t.Skip(err)
	}
	if os.Getenv(ownMounts) != "" {
		t.Skip("Docker does not see the mounts of the tests' mount namespace")
	}
	t.Parallel()
	image := "outrider-e2e:" + filepath.Base(mkdir(t))
	var tar strings.Builder
	tar.WriteString("mkdir root && cd root")
	for to, from := range nomadtest.Files(t, "sh", "cat", "stat", "sleep") {
		fmt.Fprintf(&tar, " && mkdir -p .%s && cp -L %s .%s", filepath.Dir(to), from, to)
	}
	cmd := exec.Command("sh", "-c", tar.String()+" && tar -c . | docker import - "+image)
	cmd.Dir = mkdir(t)
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	t.Cleanup(func() {
		out, err := exec.Command("docker", "rmi", image).CombinedOutput()
		test.NoError(t, err, test.Sprintf("%s", out))
	})
	n := newNode(t, nodeOptions{
		classes: pool(t, "fast"), dataset: "mounts_for_all = true",
		config: fmt.Sprintf(`
client {
  options = { "driver.denylist" = "java,qemu" }
}
plugin "docker" {
  config {
    endpoint       = %q
    infra_image    = %q
    gc { image = false }
  }
}
`, cmp.Or(os.Getenv("DOCKER_HOST"), "unix:///var/run/docker.sock"), image),
	})
	n.volume(t, "data")
	volume, slot := nomadtest.WithVolume("data", "/data"), withDevice("zfs/dataset/fast")
	script := conf{"image": image, "command": "/bin/sh", "args": []string{"-c", useDatasets}}
	run := func(edit ...func(*api.Job, *api.Task)) *alloc {
		quick := func(_ *api.Job, task *api.Task) { task.KillTimeout = new(time.Second) } // process 1 ignores signals
		return n.submit(t, job(t, script, append(edit, asDriver("docker"), asService, withMemory(48), quick)...))
	}
	tasks := []struct {
		name          string
		alloc         *alloc
		first, second string // outputs of its two runs
	}{
		{"volume", run(volume), datasetsUsed("new", "/data"), datasetsUsed("used", "/data")},
		{"slot", run(slot), datasetsUsed("new", "/scratch"), datasetsUsed("")},
		{"both", run(volume, slot), datasetsUsed("new", "/scratch"), datasetsUsed("new", "/data")},
	}
	for _, task := range tasks {
		task.alloc.says(t, "stdout", "ready\n")
		test.Eq(t, task.first, task.alloc.output(t, "stdout"), test.Sprint(task.name))
	}
	must.NoError(t, n.Stop(t.Context()))
	n.restart(t)
	for _, task := range tasks {
		task.alloc.restartSays(t, "ready\n")
		test.Eq(t, task.first+task.second, task.alloc.output(t, "stdout"), test.Sprintf("%s after the restarts", task.name))
		task.alloc.stop(t)
	}
}
