// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/docker"
)

// testImage has a shell.
const testImage = "localhost/outrider-remote-test:latest"

const leaseTime = 5 * time.Second

// engine is one that tests use. It has their image.
type engine struct {
	name, host string
	dir        string // of one of a test's own
	pid        int    // whose network it has, 0 for this machine's
	api        *client.Client
	end        func()
}

var engines struct {
	docker, podman func() (*engine, error)
	used           []*engine
}

func TestMain(m *testing.M) {
	used := func(start func() (*engine, error)) func() (*engine, error) {
		return sync.OnceValues(func() (*engine, error) {
			e, err := start()
			if err == nil {
				engines.used = append(engines.used, e)
			}
			return e, err
		})
	}
	engines.docker, engines.podman = used(dockerEngine), used(podmanEngine)
	code := m.Run()
	for _, e := range engines.used {
		if err := errors.Join(e.swept(), e.left(), e.removeImage()); err != nil {
			fmt.Fprintf(os.Stderr, "left on %s: %v\n", e.name, err)
			code = 1
		}
		e.end()
	}
	os.Exit(code)
}

// swept is what a node does every minute.
func (e *engine) swept() error {
	c, err := docker.New(docker.Options{Host: e.host})
	if err != nil {
		return err
	}
	_, err = c.List(context.Background())
	return errors.Join(err, c.Close())
}

func (e *engine) removeImage() error {
	_, err := e.api.ImageRemove(context.Background(), testImage, client.ImageRemoveOptions{Force: true})
	return err
}

// ours reports whether a name is of an object of these tests: others may use the engine at the same time.
func ours(name string) bool {
	return strings.Contains(name, "-0123456789ab") || strings.Contains(name, "-feedfeedfeed")
}

// left is an error if there is a container or a volume of an endpoint, or an image of claims without any.
func (e *engine) left() error {
	ctx := context.Background()
	filter := client.Filters{}.Add("label", "dev.outrider.plugin=remote")
	all, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter})
	volumes, verr := e.api.VolumeList(ctx, client.VolumeListOptions{Filters: filter})
	if err = errors.Join(err, verr); err != nil {
		return err
	}
	for _, c := range all.Items {
		if ours(c.Names[0]) {
			err = errors.Join(err, fmt.Errorf("container %v, %s", c.Names, c.State))
		}
	}
	for _, v := range volumes.Items {
		if ours(v.Name) {
			err = errors.Join(err, fmt.Errorf("volume %v", v.Name))
		}
	}
	images, ierr := e.api.ImageList(ctx, client.ImageListOptions{})
	for _, i := range images.Items {
		claims := slices.Contains(i.RepoTags, "localhost/outrider-claim:latest") && len(all.Items) == 0
		if private := e.dir != ""; private && (claims || len(i.RepoTags) == 0) { // where nobody else makes claims
			err = errors.Join(err, fmt.Errorf("image %s %v", i.ID, i.RepoTags))
		}
	}
	return errors.Join(err, ierr)
}

// dockerEngine is the one that DOCKER_HOST names.
func dockerEngine() (*engine, error) {
	api, err := client.New(client.FromEnv)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := api.Ping(ctx, client.PingOptions{}); err != nil {
		return nil, fmt.Errorf("docker does not answer: %w", err)
	}
	e := &engine{name: "docker", host: api.DaemonHost(), api: api, end: func() { api.Close() }}
	return e, e.importImage(ctx)
}

// An engine of a test's own has nothing of this machine's: network, mounts and state of its runtime. It is started
// again when it has ended and there is a script again, which is run before.
const ownScript = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /run/lock
[ ! -d /var/lib/cni ] || mount -t tmpfs tmpfs /var/lib/cni
! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified # crun refuses one that has a controller
ip link set lo up
while :; do
  setpriv --pdeathsig TERM "$@" &
  echo $! > pid
  wait $! || true
  [ -e again ] || exit 0
  . ./again
  rm again
  rm -f dockerd.pid exec/containerd/containerd.pid # dockerd takes a zombie for one that runs
done`

// ownEngine starts one with a command that listens at DIR/s.
func ownEngine(name string, command ...string) (*engine, error) {
	if os.Getuid() != 0 {
		return nil, errors.New("only root starts an engine")
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", name)
	if err != nil {
		return nil, err
	}
	for i := range command {
		command[i] = strings.ReplaceAll(command[i], "DIR", dir)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	for file, text := range map[string]string{
		// the default limits are more than root may set without CAP_SYS_RESOURCE
		"containers.conf": "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=4096:4096\"]\n",
		"registries.conf": "[[registry]]\nlocation = \"127.0.0.1\"\ninsecure = true\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command("sh", append([]string{"-c", ownScript, "sh"}, command...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+filepath.Join(dir, "containers.conf"),
		"CONTAINERS_REGISTRIES_CONF="+filepath.Join(dir, "registries.conf"), "HOME="+dir, "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM,
	}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // a process gets its Pdeathsig when the thread ends that started it
		defer close(ended)
		started <- cmd.Start()
		_ = cmd.Wait()
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	e := &engine{name: name, host: "unix://" + filepath.Join(dir, "s"), dir: dir, pid: cmd.Process.Pid}
	e.end = func() {
		e.api.Close()
		mounts, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", cmd.Process.Pid))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		e.kill(syscall.SIGTERM)
		<-ended
		killAll(mounts)
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if e.api, err = client.New(client.WithHost(e.host)); err != nil {
		return nil, err
	}
	if err := e.answers(); err != nil {
		e.end()
		return nil, err
	}
	return e, e.importImage(context.Background())
}

// killAll kills what is left in the mount namespace of an engine: Podman's conmon stays for 5 minutes after a command.
func killAll(mounts string) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range all {
		pid, _ := strconv.Atoi(filepath.Base(p))
		if ns, err := os.Readlink(p + "/ns/mnt"); err == nil && mounts != "" && ns == mounts && pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// killProgram kills the process of a container, after those that watch it.
func (e *engine) killProgram(pid int) error {
	pids := []int{pid}
	for {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		// the parent, behind a name that may have spaces
		if pid, err = strconv.Atoi(strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))[2]); err != nil {
			return err
		}
		if pid <= 1 || pid == e.pid {
			break
		}
		pids = append(pids, pid)
	}
	for _, pid := range slices.Backward(pids) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return nil
}

// kill sends a signal to an engine of a test's own.
func (e *engine) kill(s syscall.Signal) {
	text, err := os.ReadFile(filepath.Join(e.dir, "pid"))
	if pid, perr := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && perr == nil {
		_ = syscall.Kill(pid, s)
	}
}

func (e *engine) answers() error {
	err := testsupport.Poll(time.Minute, func() error {
		_, err := e.api.Ping(context.Background(), client.PingOptions{})
		return err
	})
	if err != nil {
		text, _ := os.ReadFile(filepath.Join(e.dir, "log"))
		err = fmt.Errorf("%w: …%s", err, text[max(0, len(text)-2000):])
	}
	return err
}

func podmanEngine() (*engine, error) {
	return ownEngine("podman", "podman", "--root", "DIR/root", "--runroot", "DIR/run", "--tmpdir", "DIR/tmp",
		"--network-config-dir", "DIR/net", "--volumepath", "DIR/vol", "--storage-driver", "overlay",
		"--cgroup-manager", "cgroupfs", "--events-backend", "file", "system", "service", "-t", "0", "unix://DIR/s")
}

func dockerd() []string {
	return []string{"dockerd", "--host", "unix://DIR/s", "--data-root", "DIR/data", "--exec-root", "DIR/exec",
		"--pidfile", "DIR/dockerd.pid"}
}

// ownDocker is one that may be killed.
func ownDocker() (*engine, error) { return ownEngine("docker", dockerd()...) }

// smallDocker is one with a disk of its own, DIR/data, in its mount namespace.
func smallDocker() (*engine, error) {
	if _, err := exec.LookPath("dockerd"); err != nil {
		return nil, err
	}
	const script = `mkdir data && mount -t tmpfs -o size=160m tmpfs data && exec "$@"`
	return ownEngine("docker", append([]string{"sh", "-c", script, "sh"}, dockerd()...)...)
}

// onOwn runs a test on an engine of its own, on which nothing may be left.
func onOwn(t *testing.T, start func() (*engine, error), f func(*testing.T, *engine)) {
	e, err := start()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(e.end)
	f(t, e)
	must.NoError(t, e.swept())
	must.NoError(t, e.left())
}

// importImage makes the image of a static busybox.
func (e *engine) importImage(ctx context.Context) error {
	box, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "bin/busybox", Mode: 0o755, Size: int64(len(box))},
	} {
		_ = w.WriteHeader(h)
		if h.Size > 0 {
			_, _ = w.Write(box)
		}
	}
	applets, err := exec.Command("/bin/busybox", "--list").Output()
	if err != nil {
		return err
	}
	for _, n := range strings.Fields(string(applets)) {
		if n == "busybox" {
			continue
		}
		_ = w.WriteHeader(&tar.Header{Name: "bin/" + n, Typeflag: tar.TypeSymlink, Linkname: "busybox"})
	}
	_ = w.Close()
	r, err := e.api.ImageImport(ctx, client.ImageImportSource{Source: &b, SourceName: "-"},
		testImage, client.ImageImportOptions{})
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

// onEngines runs a test on Docker and on Podman, as far as there are.
func onEngines(t *testing.T, f func(t *testing.T, e *engine)) {
	for name, start := range map[string]func() (*engine, error){"docker": engines.docker, "podman": engines.podman} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // tests mostly wait
			e, err := start()
			if err != nil {
				t.Skipf("no %s: %v", name, err)
			}
			f(t, e)
		})
	}
}

// connect returns a node's connection.
func (e *engine) connect(t *testing.T) *docker.Endpoint {
	c, err := docker.New(docker.Options{Host: e.host, Lease: leaseTime})
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, c.Close()) })
	return c
}

// claimConfig is that of a claim whose label can't be read.
func claimConfig(name string) *container.Config {
	return &container.Config{Entrypoint: []string{"x"}, Labels: map[string]string{
		"dev.outrider.plugin": "remote", "dev.outrider.object": name, "dev.outrider.claim": "{",
	}}
}

// procNetwork is the network of a process.
func procNetwork(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }
