// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package nomad is a testcontainers module for HashiCorp Nomad: one agent that is
// server and client, and runs tasks inside its container. It also finds, downloads
// or builds the nomad program itself (Binary).
package nomad

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/hashicorp/nomad/api"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/testcontainers/testcontainers-go"
	tcexec "github.com/testcontainers/testcontainers-go/exec"
)

// Directories in the container.
const (
	DataDir   = "/var/lib/nomad"               // Nomad's data_dir
	PluginDir = "/usr/local/lib/nomad/plugins" // Nomad's plugin_dir
	StateDir  = DataDir + "-plugins"           // for state of the plugins: a volume, for sockets and FIFOs

	HostVolumePluginDir = "/usr/local/lib/nomad/host_volume_plugins" // for Nomad's host_volume_plugin_dir
)

const (
	configDir = "/etc/nomad.d"

	// as in entrypoint.sh; in memory, so that they are gone when the container starts again
	pidFile  = "/dev/shm/nomad-agent.pid"
	holdFile = "/dev/shm/nomad-agent.hold"

	portLabel = "dev.outrider.nomad.port"
	modeLabel = "dev.outrider.nomad.mode"
)

//go:embed entrypoint.sh
var entrypoint string

//go:embed agent.hcl
var defaultConfig string

// Container is a Nomad agent in a container. A nil Container is one that does not exist any more.
type Container struct {
	testcontainers.Container

	port int
	mode string
}

// Run starts an agent from an image that has a shell, and a nomad program unless WithBinary adds one. It returns when
// the container runs; a wait strategy such as NodeHealthy waits for more. The API is published on loopback only. If
// the container exists, it is returned even with an error.
//
// Nomad needs many rights. Run tries a privileged container first. If the daemon cannot give all capabilities (it may
// itself run with fewer), it tries an explicit set of them.
func Run(ctx context.Context, img string, opts ...testcontainers.ContainerCustomizer) (*Container, error) {
	var refusals error
	for _, r := range rights {
		// with an empty container first: one with all its files takes seconds
		err := probe(ctx, img, r)
		if err == nil {
			ctr, err := runWith(ctx, img, r, opts)
			if err != nil {
				err = fmt.Errorf("run nomad: %s container: %w", r.name, err)
			}
			return ctr, err
		}
		refusals = errors.Join(refusals, fmt.Errorf("%s container: %w", r.name, err))
		if !refused(err) {
			break
		}
	}
	return nil, fmt.Errorf("run nomad: %w", refusals)
}

// probe starts and removes an idle container with these rights.
func probe(ctx context.Context, img string, r right) error {
	ctr, err := testcontainers.Run(ctx, img, testcontainers.WithEntrypoint("/bin/true"),
		testcontainers.WithHostConfigModifier(r.apply))
	return errors.Join(err, testcontainers.TerminateContainer(ctr, testcontainers.StopTimeout(0)))
}

func runWith(
	ctx context.Context, img string, r right, opts []testcontainers.ContainerCustomizer,
) (*Container, error) {
	defaults := []testcontainers.ContainerCustomizer{
		testcontainers.WithEntrypoint("/usr/local/bin/nomad-entrypoint"),
		withText("/usr/local/bin/nomad-entrypoint", entrypoint, 0o755),
		withText(configDir+"/00-default.hcl", defaultConfig, 0o644),
		testcontainers.WithLabels(map[string]string{modeLabel: r.name}),
		testcontainers.WithHostConfigModifier(func(hc *container.HostConfig) {
			init := true // plugins leave orphans behind for pid 1 to reap
			hc.Init = &init
			hc.CgroupnsMode = container.CgroupnsModePrivate   // does not litter the host's cgroups
			for _, dir := range []string{DataDir, StateDir} { // not overlay: tasks' directories are bind mounted
				hc.Mounts = append(hc.Mounts, mount.Mount{Type: mount.TypeVolume, Target: dir})
			}
			r.apply(hc)
		}),
		WithPort(4646),
	}
	ctr, err := testcontainers.Run(ctx, img, append(defaults, opts...)...)
	if ctr == nil {
		return nil, err
	}
	c := &Container{Container: ctr}
	return c, errors.Join(err, c.learn(ctx))
}

// ErrGone is the error of a container that does not exist any more.
var ErrGone = errors.New("there is no such container")

// Open returns the running or stopped container that Run made, by its id.
func Open(ctx context.Context, id string) (*Container, error) {
	p, err := testcontainers.NewDockerProvider()
	if err != nil {
		return nil, fmt.Errorf("open nomad: %w", err)
	}
	ctr, err := p.ContainerFromType(ctx, container.Summary{ID: id})
	if errdefs.IsNotFound(err) {
		err = ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("open nomad: container %.12s: %w", id, err)
	}
	c := &Container{Container: ctr}
	return c, c.learn(ctx)
}

// learn reads the port and the mode from the labels.
func (c *Container) learn(ctx context.Context) error {
	info, err := c.Inspect(ctx)
	if err != nil {
		return fmt.Errorf("inspect nomad: %w", err)
	}
	c.mode = info.Config.Labels[modeLabel]
	c.port, err = strconv.Atoi(info.Config.Labels[portLabel])
	return err
}

// WithPort sets the port of the API, in the container and on the host's loopback.
// Both are the same since Nomad reports its own address to clients such as
// `nomad alloc logs`.
func WithPort(port int) testcontainers.CustomizeRequestOption {
	return func(req *testcontainers.GenericContainerRequest) error {
		p, err := network.ParsePort(fmt.Sprintf("%d/tcp", port))
		if err != nil {
			return fmt.Errorf("nomad port: %w", err)
		}
		req.ExposedPorts = []string{p.String()}
		for _, o := range []testcontainers.CustomizeRequestOption{
			testcontainers.WithLabels(map[string]string{portLabel: strconv.Itoa(port)}),
			withText(configDir+"/10-port.hcl", fmt.Sprintf("ports {\n  http = %d\n}\n", port), 0o644),
			testcontainers.WithHostConfigModifier(func(hc *container.HostConfig) {
				hc.PortBindings = network.PortMap{p: {{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: strconv.Itoa(port)}}}
			}),
		} {
			if err := o(req); err != nil {
				return err
			}
		}
		return nil
	}
}

// WithConfigString adds agent configuration, which overrides what was added before.
func WithConfigString(hcl string) testcontainers.CustomizeRequestOption {
	return func(req *testcontainers.GenericContainerRequest) error {
		return withText(nextConfig(req), hcl, 0o644)(req)
	}
}

func withText(path, text string, mode int64) testcontainers.CustomizeRequestOption {
	return testcontainers.WithFiles(testcontainers.ContainerFile{
		Reader: strings.NewReader(text), ContainerFilePath: path, FileMode: mode,
	})
}

// WithNamedConfig adds agent configuration that PutConfig replaces. WithConfigString overrides it.
func WithNamedConfig(name, hcl string) testcontainers.CustomizeRequestOption {
	return withText(namedConfig(name), hcl, 0o644)
}

func namedConfig(name string) string { return configDir + "/40-" + name + ".hcl" }

// nextConfig returns a file name such that Nomad, which reads files in order of name, reads them in the order in which
// they were added.
func nextConfig(req *testcontainers.GenericContainerRequest) string {
	return fmt.Sprintf("%s/50-%03d.hcl", configDir, len(req.Files))
}

// WithBinary adds the nomad program, for an image without one.
func WithBinary(path string) testcontainers.CustomizeRequestOption {
	return testcontainers.WithFiles(testcontainers.ContainerFile{
		HostFilePath: path, ContainerFilePath: "/usr/local/bin/nomad", FileMode: 0o755,
	})
}

// WithPlugin adds a plugin binary under a name. Its configuration, if it needs any,
// comes with WithConfigString.
func WithPlugin(path, name string) testcontainers.CustomizeRequestOption {
	return testcontainers.WithFiles(testcontainers.ContainerFile{
		HostFilePath: path, ContainerFilePath: PluginDir + "/" + name, FileMode: 0o755,
	})
}

// WithHostVolumePlugin adds a host volume plugin under an id.
func WithHostVolumePlugin(path, id string) testcontainers.CustomizeRequestOption {
	return testcontainers.WithFiles(testcontainers.ContainerFile{
		HostFilePath: path, ContainerFilePath: HostVolumePluginDir + "/" + id, FileMode: 0o755,
	})
}

// WithHostVolumeFile adds a file beside the host volume plugins.
func WithHostVolumeFile(name, text string) testcontainers.CustomizeRequestOption {
	return withText(HostVolumePluginDir+"/"+name, text, 0o644)
}

// Address is the URL of the API and the web UI.
func (c *Container) Address() string { return fmt.Sprintf("http://127.0.0.1:%d", c.port) }

// Mode is the kind of rights that the container has: "privileged" or "capabilities".
func (c *Container) Mode() string { return c.mode }

// Client talks to the agent.
func (c *Container) Client() (*api.Client, error) { return NewClient(c.Address()) }

// NewClient is an API client of the agent at an address, whatever NOMAD_ADDR and NOMAD_TOKEN say.
func NewClient(address string) (*api.Client, error) {
	c, err := api.NewClient(&api.Config{Address: address, Region: "global"})
	if err != nil {
		return nil, fmt.Errorf("failed to make a Nomad client: %w", err)
	}
	c.SetSecretID("")
	return c, nil
}

// Output runs a command in the container and returns what it prints. A command
// that fails is an error.
func (c *Container) Output(ctx context.Context, argv ...string) (string, error) {
	if c == nil {
		return "", ErrGone
	}
	code, r, err := c.Exec(ctx, argv, tcexec.Multiplexed())
	if err != nil {
		return "", fmt.Errorf("exec in nomad container: %w", err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		return string(out), fmt.Errorf("exec in nomad container: %w", err)
	}
	if code != 0 {
		return string(out), fmt.Errorf("%s: exit code %d: %s", argv[0], code, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// AgentPID is the agent's process id in the container.
func (c *Container) AgentPID(ctx context.Context) (int, error) {
	out, err := c.Output(ctx, "sh", "-c", "p=$(cat "+pidFile+") && kill -0 $p && echo $p")
	if err != nil {
		return 0, fmt.Errorf("the nomad agent does not run: %w", err)
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

// StopAgent stops the agent with SIGINT, and kills it after 15 s. Tasks live on.
func (c *Container) StopAgent(ctx context.Context) error { return c.end(ctx, "INT", 15*time.Second) }

// KillAgent kills the agent alone.
func (c *Container) KillAgent(ctx context.Context) error { return c.end(ctx, "KILL", time.Second) }

func (c *Container) end(ctx context.Context, signal string, patience time.Duration) error {
	script := fmt.Sprintf(`touch %[1]s
p=$(cat %[2]s 2>/dev/null) || exit 0
kill -%[3]s $p 2>/dev/null
for i in $(seq %[4]d); do [ -e %[2]s ] || exit 0; sleep 0.05; done
kill -KILL $p 2>/dev/null
for i in $(seq 1200); do [ -e %[2]s ] || exit 0; sleep 0.05; done
echo "agent $p does not end"; exit 1`, holdFile, pidFile, signal, patience/(50*time.Millisecond))
	if _, err := c.Output(ctx, "sh", "-c", script); err != nil {
		return fmt.Errorf("stop nomad agent: %w", err)
	}
	return nil
}

// StartAgent starts the agent again after StopAgent or KillAgent, or after a stop of the container.
func (c *Container) StartAgent(ctx context.Context) error {
	if c == nil {
		return ErrGone
	}
	state, err := c.State(ctx)
	if err == nil && !state.Running { // after a reboot, or a crash of the agent
		err = c.Start(ctx)
	}
	if err != nil {
		return fmt.Errorf("start nomad container: %w", err)
	}
	script := fmt.Sprintf(`rm -f %s
for i in $(seq 1200); do [ -e %s ] && exit 0; sleep 0.05; done
echo "agent does not start"; exit 1`, holdFile, pidFile)
	if _, err := c.Output(ctx, "sh", "-c", script); err != nil {
		return fmt.Errorf("start nomad agent: %w", err)
	}
	return nil
}

// PutPlugin replaces a plugin's binary. The agent uses it from its next start on. A running plugin is not disturbed:
// the daemon replaces the file.
func (c *Container) PutPlugin(ctx context.Context, path, name string) error {
	if c == nil {
		return ErrGone
	}
	if err := c.CopyFileToContainer(ctx, path, PluginDir+"/"+name, 0o755); err != nil {
		return fmt.Errorf("copy plugin: %w", err)
	}
	return nil
}

// PutHostVolumePlugin is PutPlugin for a host volume plugin.
func (c *Container) PutHostVolumePlugin(ctx context.Context, path, id string) error {
	if c == nil {
		return ErrGone
	}
	if err := c.CopyFileToContainer(ctx, path, HostVolumePluginDir+"/"+id, 0o755); err != nil {
		return fmt.Errorf("copy host volume plugin: %w", err)
	}
	return nil
}

// PutHostVolumeFile replaces a file beside the host volume plugins.
func (c *Container) PutHostVolumeFile(ctx context.Context, name, text string) error {
	if c == nil {
		return ErrGone
	}
	if err := c.CopyToContainer(ctx, []byte(text), HostVolumePluginDir+"/"+name, 0o644); err != nil {
		return fmt.Errorf("copy file of a host volume plugin: %w", err)
	}
	return nil
}

// PutConfig replaces the agent configuration of this name. The agent uses it from its next start on.
func (c *Container) PutConfig(ctx context.Context, name, hcl string) error {
	if c == nil {
		return ErrGone
	}
	if err := c.CopyToContainer(ctx, []byte(hcl), namedConfig(name), 0o644); err != nil {
		return fmt.Errorf("copy configuration: %w", err)
	}
	return nil
}
