// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"archive/tar"
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tcexec "github.com/testcontainers/testcontainers-go/exec"
	tclog "github.com/testcontainers/testcontainers-go/log"

	"github.com/outrider-dev/outrider/lab/internal/poll"
)

// Image is the container's image: Debian with the programs that tasks and users expect. Nomad and the plugins are
// mounted into the container.
const Image = "outrider-lab:bookworm"

//go:embed Dockerfile
var dockerfile embed.FS

//go:embed entrypoint.sh
var entrypoint []byte

// containerAgent is an agent in a container. Its directory has the same path in the container as on this machine.
type containerAgent struct {
	*record
	ctr *testcontainers.DockerContainer // nil if the container no longer exists
}

var _ Agent = (*containerAgent)(nil)

// docker calls the function do with a client of the Docker daemon. It makes its own client, because testcontainers'
// client panics if it finds no daemon.
func docker(ctx context.Context, do func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // long enough for a busy machine
	defer cancel()
	c, err := client.New(client.FromEnv)
	if err == nil {
		defer c.Close()
		err = do(ctx, c)
	}
	if err != nil {
		return fmt.Errorf("docker does not answer: %w", err)
	}
	return nil
}

// DockerAnswers returns nil if the daemon answers.
func DockerAnswers(ctx context.Context) error {
	return docker(ctx, func(ctx context.Context, c *client.Client) error {
		_, err := c.Ping(ctx, client.PingOptions{})
		return err
	})
}

// quiet silences testcontainers and disables its reaper (Ryuk), before the first use. The reaper would end the lab when
// the program that started the lab exits, and it needs an image from a registry.
var quiet = sync.OnceFunc(func() {
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	tclog.SetDefault(log.New(io.Discard, "", 0))
})

// image returns an option that selects Image, or builds it from the embedded Dockerfile if it does not exist.
func image(ctx context.Context, progress func(string, ...any)) (testcontainers.CustomizeRequestOption, error) {
	missing := docker(ctx, func(ctx context.Context, c *client.Client) error {
		_, err := c.ImageInspect(ctx, Image)
		return err
	})
	if missing == nil {
		return testcontainers.WithImage(Image), nil
	}
	progress("building %s from lab/agent/Dockerfile", Image)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := errors.Join(w.AddFS(dockerfile), w.Close())
	repo, tag, _ := strings.Cut(Image, ":")
	return testcontainers.WithDockerfile(testcontainers.FromDockerfile{
		ContextArchive: bytes.NewReader(archive.Bytes()), Repo: repo, Tag: tag, KeepImage: true,
		BuildOptionsModifier: func(o *client.ImageBuildOptions) { o.Target = "lab" },
	}), err
}

// rights are ways to give a container the privileges that Nomad needs. They are tried in this order: the first one
// fails if the daemon itself lacks capabilities, for example in a container.
var rights = []struct {
	name  string
	apply func(*container.HostConfig)
}{
	{"privileged", func(hc *container.HostConfig) { hc.Privileged = true }},
	{"capabilities", func(hc *container.HostConfig) {
		hc.CapAdd = capabilities
		hc.SecurityOpt = append(hc.SecurityOpt, "seccomp=unconfined", "apparmor=unconfined")
		// writable /proc/sys and similar paths, as with the option `--security-opt systempaths=unconfined` of docker
		hc.MaskedPaths, hc.ReadonlyPaths = []string{}, []string{}
		hc.Resources.DeviceCgroupRules = []string{"a *:* rwm"}
	}},
}

// capabilities lists what Nomad, its executor and exec-lite use, except capabilities that a daemon in a container
// usually lacks itself (SYS_RESOURCE, SYS_MODULE, SYS_BOOT, SYS_TIME).
var capabilities = []string{
	"SYS_ADMIN",  // mounts, namespaces
	"NET_ADMIN",  // bridge networks of task groups
	"SYS_PTRACE", // read other users' /proc/<pid>
	"SYS_CHROOT", "MKNOD", "SETUID", "SETGID", "SETPCAP", "SETFCAP", "CHOWN", "DAC_OVERRIDE",
	"FOWNER", "FSETID", "KILL", "SYS_NICE", "NET_RAW", "NET_BIND_SERVICE", "AUDIT_WRITE",
}

func newContainer(r *record) *containerAgent {
	quiet()
	const data = "/var/lib/nomad"
	r.layout = r.newLayout(data, data+"-plugins")
	r.layout.Bind = "0.0.0.0" // all of the container's addresses; Docker publishes the port on loopback only
	return &containerAgent{record: r}
}

func (a *containerAgent) first(ctx context.Context, o Options) error {
	script := filepath.Join(o.Dir, "entrypoint.sh")
	if err := os.WriteFile(script, entrypoint, 0o755); err != nil {
		return err
	}
	// use the same port in the container: clients such as `nomad alloc logs` connect to the address that Nomad reports
	port := network.MustParsePort(fmt.Sprintf("%d/tcp", a.info.HTTP))
	local := network.PortBinding{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: strconv.Itoa(a.info.HTTP)}
	var refusals error
	for _, right := range rights {
		from, err := image(ctx, o.Progress)
		if err != nil {
			return err
		}
		a.ctr, err = testcontainers.Run(ctx, "", from, testcontainers.WithEntrypoint("sh", script),
			testcontainers.WithCmd("sleep", "infinity"),
			testcontainers.WithExposedPorts(port.String()),
			testcontainers.WithConfigModifier(func(c *container.Config) { c.Hostname = o.Name }),
			testcontainers.WithHostConfigModifier(func(hc *container.HostConfig) {
				hc.Init = new(true) // pid 1 must reap orphaned processes of plugins
				hc.CgroupnsMode = container.CgroupnsModePrivate
				hc.PortBindings = network.PortMap{port: {local}}
				hc.Mounts = []mount.Mount{
					{Type: mount.TypeBind, Source: o.Dir, Target: o.Dir},
					{Type: mount.TypeBind, Source: o.Binary, Target: program, ReadOnly: true},
					// use volumes, not the container's overlay, because tasks' directories are bind mounted
					{Type: mount.TypeVolume, Target: a.DataDir()}, {Type: mount.TypeVolume, Target: a.StateDir()},
				}
				right.apply(hc)
			}))
		if err == nil {
			a.info.Container = a.ctr.GetContainerID()
			return errors.Join(a.info.write(), a.Start(ctx))
		}
		refusals = errors.Join(refusals, fmt.Errorf("failed to start a container (%s): %w", right.name, err))
		if err := a.remove(ctx); err != nil {
			return errors.Join(refusals, err)
		}
	}
	return refusals
}

// find returns the container with this id, or nil if it no longer exists.
func find(ctx context.Context, id string) (*testcontainers.DockerContainer, error) {
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return nil, fmt.Errorf("failed to reach Docker: %w", err)
	}
	ctr, err := provider.ContainerFromType(ctx, container.Summary{ID: id})
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to find container %.12s: %w", id, err)
	}
	return ctr, nil
}

// daemon returns a start-stop-daemon command for the agent: the process whose pid is in pidFile, if it runs nomad.
func daemon(args ...string) []string {
	return append([]string{"start-stop-daemon", "--pidfile", pidFile, "--exec", program}, args...)
}

const (
	pidFile = "/run/nomad-agent.pid"
	program = "/usr/local/bin/nomad"
)

func (a *containerAgent) Start(ctx context.Context) error {
	if a.ctr == nil {
		return errGone
	}
	state, err := a.ctr.State(ctx)
	if err == nil && !state.Running { // after a reboot
		err = a.ctr.Start(ctx)
	}
	if err == nil {
		start := daemon("--start", "--oknodo", "--background", "--make-pidfile", "--output", a.LogPath(), "--")
		_, err = a.exec(ctx, append(start, a.arguments()...)...)
	}
	if err != nil {
		return fmt.Errorf("failed to start the agent: %w", err)
	}
	// Wait until the new process has executed nomad, because Alive recognizes it by that program. An agent that exits at
	// once is not an error here: a later call of Alive reports it.
	moment, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_ = poll.Until(moment, 50*time.Millisecond, func() (bool, error) { return a.Alive(moment) == nil, nil })
	return nil
}

func (a *containerAgent) Stop(ctx context.Context) error {
	_, err := a.exec(ctx, daemon("--stop", "--oknodo", "--retry", "INT/30/KILL/30")...)
	return err
}

func (a *containerAgent) Kill(ctx context.Context) error {
	_, err := a.exec(ctx, daemon("--stop", "--oknodo", "--retry", "KILL/30")...)
	return err
}

func (a *containerAgent) Alive(ctx context.Context) error {
	_, err := a.exec(ctx, daemon("--status")...)
	if err == nil || ctx.Err() != nil { // if ctx has ended, the error proves nothing about the agent
		return nil
	}
	return fmt.Errorf("the nomad agent is not running (%w); the end of its log:\n%s", err, logTail(a))
}

var errGone = errors.New("the agent's container no longer exists; remove the lab with: go tool mage lab:down")

// exec runs a command in the container, and returns its combined output.
func (a *containerAgent) exec(ctx context.Context, argv ...string) (string, error) {
	if a.ctr == nil {
		return "", errGone
	}
	code, r, err := a.ctr.Exec(ctx, argv, tcexec.Multiplexed())
	if err != nil {
		return "", fmt.Errorf("failed to run %s in the container: %w", argv[0], err)
	}
	out, err := io.ReadAll(r)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d: %s", code, bytes.TrimSpace(out))
	}
	if err != nil {
		return string(out), fmt.Errorf("failed to run %s in the container: %w", argv[0], err)
	}
	return string(out), nil
}

func (a *containerAgent) Close(ctx context.Context) error {
	var jobs error
	if a.ctr != nil && a.client != nil && a.Alive(ctx) == nil {
		jobs = StopJobs(ctx, a.client, "")
	}
	return errors.Join(jobs, a.remove(ctx), os.RemoveAll(a.info.Dir))
}

// remove removes the container with its volumes.
func (a *containerAgent) remove(ctx context.Context) error {
	err := testcontainers.TerminateContainer(a.ctr, testcontainers.StopTimeout(2*time.Second))
	if err != nil && !strings.Contains(err.Error(), "No such container") {
		return fmt.Errorf("failed to remove the container: %w", err)
	}
	a.ctr = nil
	return nil
}
