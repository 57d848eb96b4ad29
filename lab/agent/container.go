// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"

	"github.com/outrider-dev/outrider/lab/image"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// containerAgent is an agent in a container of its own.
type containerAgent struct {
	*record
	ctr *nomad.Container // nil if it does not exist any more
}

var _ Agent = (*containerAgent)(nil)

// DockerAnswers returns nil if the daemon answers.
func DockerAnswers(ctx context.Context) error {
	quiet()
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // a busy machine takes its time
	defer cancel()
	// not testcontainers' client: it panics if it finds no daemon
	cli, err := client.New(client.FromEnv)
	if err != nil {
		return fmt.Errorf("docker does not answer: %w", err)
	}
	defer cli.Close()
	if _, err := cli.Ping(ctx, client.PingOptions{}); err != nil {
		return fmt.Errorf("docker does not answer: %w", err)
	}
	return nil
}

// quiet configures testcontainers before its first use. Its reaper (Ryuk) would end the lab together with the program
// that started it, and needs an image from a registry.
var quiet = sync.OnceFunc(func() {
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	log.SetDefault(silent{})
})

type silent struct{}

func (silent) Printf(string, ...any) {}

// inContainer is where an agent in a container finds its things.
var inContainer = layout{data: nomad.DataDir, plugins: nomad.PluginDir, hostVolumes: nomad.HostVolumePluginDir,
	state: nomad.StateDir, bind: "0.0.0.0"}

// startContainer returns the agent even with an error, if there is something to close.
func startContainer(ctx context.Context, o Options) (Agent, error) {
	quiet()
	r, err := newRecord(o)
	if err != nil {
		return nil, err
	}
	r.layout = inContainer
	if o.Image == "" {
		if o.Image, err = image.Ensure(ctx, "", o.Progress); err != nil {
			return nil, err
		}
	}
	ports, err := FreePorts(1)
	if err != nil {
		return nil, err
	}
	a := &containerAgent{record: r}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return a, fmt.Errorf("failed to create the agent's directory: %w", err)
	}
	a.info.Image, a.info.HTTP, a.info.RPC, a.info.Serf = o.Image, cmp.Or(o.HTTPPort, ports[0]), 4647, 4648
	opts := []testcontainers.ContainerCustomizer{
		nomad.WithPort(a.info.HTTP),
		nomad.WithBinary(o.Binary),
		testcontainers.WithEnv(o.Env),
		testcontainers.WithLabels(map[string]string{"dev.outrider.lab": o.Dir}),
		// a name that says whose it is, in `docker ps`
		testcontainers.WithConfigModifier(func(c *container.Config) { c.Hostname = o.Name }),
		nomad.WithNamedConfig(configName, config(o, a.layout, a.info)),
	}
	for _, p := range o.Plugins {
		opts = append(opts, nomad.WithPlugin(p.Binary, p.Name()))
		if p.HostVolume != "" {
			opts = append(opts, nomad.WithHostVolumePlugin(p.Binary, p.HostVolume))
		}
	}
	for name, text := range hostVolumeFiles(o) {
		opts = append(opts, nomad.WithHostVolumeFile(name, text))
	}
	if o.Config != "" {
		opts = append(opts, nomad.WithNamedConfig(extraConfigName, o.Config))
	}

	a.ctr, err = nomad.Run(ctx, o.Image, opts...)
	if a.ctr != nil {
		a.info.Container, a.info.Mode = a.ctr.GetContainerID(), a.ctr.Mode()
		err = errors.Join(err, a.info.write())
	}
	if err != nil {
		return a, err
	}
	// the container runs, the agent in it perhaps not yet; one that has ended
	// already is for WaitHealthy to explain, with its log
	_ = a.ctr.StartAgent(ctx)
	return a, a.connect()
}

// The names of the agent's configuration and of Options.Config, which is read after it.
const (
	configName      = "lab"
	extraConfigName = "more"
)

func openContainer(ctx context.Context, info Info) (Agent, error) {
	quiet()
	a := &containerAgent{record: &record{info: info, layout: inContainer}}
	var err error
	if a.ctr, err = nomad.Open(ctx, info.Container); err != nil && !errors.Is(err, nomad.ErrGone) {
		return nil, err
	}
	return a, a.connect()
}

// Start implements Agent.
func (a *containerAgent) Start(ctx context.Context) error { return a.ctr.StartAgent(ctx) }

// Stop implements Agent.
func (a *containerAgent) Stop(ctx context.Context) error { return a.ctr.StopAgent(ctx) }

// Kill implements Agent.
func (a *containerAgent) Kill(ctx context.Context) error { return a.ctr.KillAgent(ctx) }

// Alive implements Agent.
func (a *containerAgent) Alive(ctx context.Context) error {
	if _, err := a.PID(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // the caller's time is over, which says nothing of the agent
		}
		if a.ctr == nil {
			return fmt.Errorf("the nomad agent is not running: %w", err)
		}
		return fmt.Errorf("the nomad agent is not running (%w); the end of its log:\n%s", err, logTail(ctx, a))
	}
	return nil
}

// PID implements Agent.
func (a *containerAgent) PID(ctx context.Context) (int, error) { return a.ctr.AgentPID(ctx) }

// Exec implements Agent.
func (a *containerAgent) Exec(ctx context.Context, argv ...string) (string, error) {
	return a.ctr.Output(ctx, argv...)
}

// Logs implements Agent.
func (a *containerAgent) Logs(ctx context.Context, w io.Writer, follow bool) error {
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return fmt.Errorf("failed to reach Docker: %w", err)
	}
	defer docker.Close()
	o := client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: follow}
	r, err := docker.ContainerLogs(ctx, a.info.Container, o)
	if err != nil {
		return fmt.Errorf("failed to read the container's log: %w", err)
	}
	defer r.Close()
	if _, err := stdcopy.StdCopy(w, w, r); err != nil && ctx.Err() == nil {
		return fmt.Errorf("failed to read the container's log: %w", err)
	}
	return nil
}

// PluginPIDs implements Agent. The image may have no ps.
func (a *containerAgent) PluginPIDs(ctx context.Context) (map[string]int, error) {
	const script = `cd /proc && for p in [0-9]*; do echo "$p $(tr '\0' ' ' 2>/dev/null <$p/cmdline)"; done 2>/dev/null`
	out, err := a.Exec(ctx, "sh", "-c", script)
	if err != nil {
		return nil, err
	}
	commands := map[int]string{}
	for line := range strings.Lines(out) {
		pid, command, _ := strings.Cut(line, " ")
		if n, err := strconv.Atoi(pid); err == nil {
			commands[n] = strings.TrimSpace(command)
		}
	}
	return pluginPIDs(commands, a.PluginDir()), nil
}

// ReplacePlugin implements Agent.
func (a *containerAgent) ReplacePlugin(ctx context.Context, binary string) error {
	if err := a.ctr.PutPlugin(ctx, binary, filepath.Base(binary)); err != nil {
		return err
	}
	if id := a.info.HostVolumes[filepath.Base(binary)]; id != "" {
		if err := a.ctr.PutHostVolumePlugin(ctx, binary, id); err != nil {
			return err
		}
	}
	return a.replaced(binary)
}

// Reconfigure implements Agent.
func (a *containerAgent) Reconfigure(ctx context.Context, o Options) error {
	if err := a.ctr.PutConfig(ctx, configName, config(o, a.layout, a.info)); err != nil {
		return err
	}
	if o.Config != "" {
		if err := a.ctr.PutConfig(ctx, extraConfigName, o.Config); err != nil {
			return err
		}
	}
	for name, text := range hostVolumeFiles(o) {
		if err := a.ctr.PutHostVolumeFile(ctx, name, text); err != nil {
			return err
		}
	}
	return a.reconfigured(o)
}

// Leftovers implements Agent. All that the agent started ends with its container.
func (a *containerAgent) Leftovers(ctx context.Context) ([]string, error) {
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to reach Docker: %w", err)
	}
	defer docker.Close()
	ours := make(client.Filters).Add("label", "dev.outrider.lab="+a.info.Dir)
	list, err := docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: ours})
	if err != nil {
		return nil, fmt.Errorf("failed to list containers: %w", err)
	}
	var left []string
	for _, c := range list.Items {
		left = append(left, fmt.Sprintf("container %.12s %s", c.ID, c.State))
	}
	return left, nil
}

// Close implements Agent.
func (a *containerAgent) Close(ctx context.Context) error {
	var errs []error
	if a.ctr != nil && a.client != nil && a.Alive(ctx) == nil {
		errs = append(errs, stopJobs(ctx, a.client))
	}
	return errors.Join(append(errs, a.remove(ctx), os.RemoveAll(a.info.Dir))...)
}

// remove removes the container with its volumes.
func (a *containerAgent) remove(ctx context.Context) error {
	if a.ctr == nil {
		return nil
	}
	err := a.ctr.Terminate(ctx, testcontainers.StopTimeout(2*time.Second))
	if err != nil && !strings.Contains(err.Error(), "No such container") {
		return fmt.Errorf("failed to remove the container: %w", err)
	}
	a.ctr = nil
	return nil
}
