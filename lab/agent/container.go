package agent

import (
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

	"github.com/hashicorp/nomad/api"
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
	ctr    *nomad.Container
	client *api.Client

	mu   sync.Mutex // guards info
	info Info
}

var _ Agent = (*containerAgent)(nil)

// DockerAnswers returns nil where a container can be started, as far as asking the
// daemon can tell.
func DockerAnswers(ctx context.Context) error {
	quiet()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	// not testcontainers' client: it panics where it finds no daemon
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

// quiet sets up testcontainers before its first use, when it reads its
// configuration. Its reaper (Ryuk) would end the lab together with the program
// that started it, and its image comes from a registry.
var quiet = sync.OnceFunc(func() {
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	log.SetDefault(silent{})
})

type silent struct{}

func (silent) Printf(string, ...any) {}

func startContainer(ctx context.Context, o Options) (_ Agent, err error) {
	quiet()
	if _, err := readInfo(o.Dir); err == nil {
		return nil, fmt.Errorf("there is an agent in %s already", o.Dir)
	}
	if o.Image == "" {
		if o.Image, err = image.Ensure(ctx, o.Progress); err != nil {
			return nil, err
		}
	}
	if o.Binary == "" {
		p, err := nomad.Binary(ctx, o.Progress)
		if err != nil {
			return nil, err
		}
		o.Binary = p.Path
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("failed to create the agent's directory: %w", err)
	}
	for try := 1; ; try++ {
		a, err := runContainer(ctx, o)
		if err == nil {
			return a, nil
		}
		if a != nil {
			cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			err = errors.Join(err, a.remove(cctx))
			cancel()
		}
		// a free port may be taken between the look and the daemon's bind
		if try == 3 || o.HTTPPort != 0 || !strings.Contains(err.Error(), "already") {
			return nil, errors.Join(err, os.RemoveAll(o.Dir))
		}
	}
}

func runContainer(ctx context.Context, o Options) (*containerAgent, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	if o.HTTPPort != 0 {
		ports[0] = o.HTTPPort
	}
	a := &containerAgent{info: Info{
		Runtime: Container, Dir: o.Dir, Name: o.Name, Binary: o.Binary, Image: o.Image, Hash: o.Hash, Labels: o.Labels, Env: o.Env,
		HTTP: ports[0], RPC: 4647, Serf: 4648, Started: time.Now(), Sums: map[string]string{},
	}}
	opts := []testcontainers.ContainerCustomizer{
		nomad.WithPort(ports[0]),
		nomad.WithBinary(o.Binary),
		testcontainers.WithEnv(o.Env),
		testcontainers.WithLabels(map[string]string{"dev.outrider.lab": o.Dir}),
		// a name that says whose it is, in `docker ps`
		testcontainers.WithConfigModifier(func(c *container.Config) { c.Hostname = o.Name }),
	}
	for _, p := range o.Plugins {
		a.info.Plugins = append(a.info.Plugins, p.Name())
		if a.info.Sums[p.Name()], err = Sum(p.Binary); err != nil {
			return nil, err
		}
		opts = append(opts, nomad.WithPlugin(p.Binary, p.Name()))
	}
	opts = append(opts, nomad.WithNamedConfig(configName, a.config(o)))
	if o.Config != "" {
		opts = append(opts, nomad.WithConfigString(o.Config))
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
	if a.client, err = newClient(a.Address()); err != nil {
		return a, err
	}
	return a, nil
}

// configName is that of the agent's configuration.
const configName = "lab"

func (a *containerAgent) config(o Options) string {
	return config(o, layout{
		data: a.DataDir(), plugins: a.PluginDir(), state: a.StateDir(), bind: "0.0.0.0",
		http: a.info.HTTP, rpc: a.info.RPC, serf: a.info.Serf,
	})
}

func openContainer(ctx context.Context, info Info) (Agent, error) {
	quiet()
	a := &containerAgent{info: info}
	var err error
	a.ctr, err = nomad.Open(ctx, info.Container)
	if err != nil && !errors.Is(err, nomad.ErrGone) {
		return nil, err
	}
	a.client, err = newClient(a.Address())
	return a, err
}

// Start implements Agent.
func (a *containerAgent) Start(ctx context.Context) error {
	if err := a.there(); err != nil {
		return err
	}
	state, err := a.ctr.State(ctx)
	if err != nil {
		return fmt.Errorf("failed to look at the container: %w", err)
	}
	if !state.Running { // after a reboot, or a crash of the agent
		if err := a.ctr.Start(ctx); err != nil {
			return fmt.Errorf("failed to start the container: %w", err)
		}
	}
	return a.ctr.StartAgent(ctx)
}

// Stop implements Agent.
func (a *containerAgent) Stop(ctx context.Context) error {
	if err := a.there(); err != nil {
		return err
	}
	return a.ctr.StopAgent(ctx)
}

// Kill implements Agent.
func (a *containerAgent) Kill(ctx context.Context) error {
	if err := a.there(); err != nil {
		return err
	}
	return a.ctr.KillAgent(ctx)
}

// Alive implements Agent.
func (a *containerAgent) Alive(ctx context.Context) error {
	if _, err := a.PID(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // the caller's time is over, which says nothing of the agent
		}
		var log strings.Builder
		if a.ctr != nil {
			err = errors.Join(err, a.Logs(ctx, &log, false))
		}
		return fmt.Errorf("the nomad agent is not running (%w); the end of its log:\n%s", err, interesting(log.String(), 12))
	}
	return nil
}

// PID implements Agent.
func (a *containerAgent) PID(ctx context.Context) (int, error) {
	if err := a.there(); err != nil {
		return 0, err
	}
	return a.ctr.AgentPID(ctx)
}

// Exec implements Agent.
func (a *containerAgent) Exec(ctx context.Context, argv ...string) (string, error) {
	if err := a.there(); err != nil {
		return "", err
	}
	return a.ctr.Output(ctx, argv...)
}

// Logs implements Agent.
func (a *containerAgent) Logs(ctx context.Context, w io.Writer, follow bool) error {
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return fmt.Errorf("failed to reach Docker: %w", err)
	}
	defer docker.Close()
	r, err := docker.ContainerLogs(ctx, a.info.Container, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Follow: follow})
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
	out, err := a.Exec(ctx, "sh", "-c", `cd /proc && for p in [0-9]*; do echo "$p $(tr '\0' ' ' 2>/dev/null <$p/cmdline)"; done 2>/dev/null`)
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
	if err := a.there(); err != nil {
		return err
	}
	name := filepath.Base(binary)
	sum, err := Sum(binary)
	if err != nil {
		return err
	}
	if err := a.ctr.PutPlugin(ctx, binary, name); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.info.Sums[name] = sum
	return a.info.write()
}

// Reconfigure implements Agent.
func (a *containerAgent) Reconfigure(ctx context.Context, o Options) error {
	if err := a.there(); err != nil {
		return err
	}
	if err := a.ctr.PutConfig(ctx, configName, a.config(o)); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.info.Hash, a.info.Labels = o.Hash, o.Labels
	return a.info.write()
}

// Leftovers implements Agent. All that the agent started ends with its container.
func (a *containerAgent) Leftovers(ctx context.Context) ([]string, error) {
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return nil, fmt.Errorf("failed to reach Docker: %w", err)
	}
	defer docker.Close()
	list, err := docker.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: make(client.Filters).Add("label", "dev.outrider.lab="+a.info.Dir)})
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

func (a *containerAgent) settle() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.info.Settled = true
	return a.info.write()
}

// there is an error where the container was removed behind our back.
func (a *containerAgent) there() error {
	if a.ctr == nil {
		return fmt.Errorf("container %.12s: %w", a.info.Container, nomad.ErrGone)
	}
	return nil
}

func (a *containerAgent) Info() Info {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.info
}
func (a *containerAgent) Client() *api.Client { return a.client }
func (a *containerAgent) Address() string     { return fmt.Sprintf("http://127.0.0.1:%d", a.info.HTTP) }
func (a *containerAgent) DataDir() string     { return (*nomad.Container)(nil).DataDir() }
func (a *containerAgent) PluginDir() string   { return (*nomad.Container)(nil).PluginDir() }
func (a *containerAgent) StateDir() string    { return (*nomad.Container)(nil).StateDir() }
