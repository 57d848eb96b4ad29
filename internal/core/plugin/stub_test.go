// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// The test binary also acts as the plugin, and as the agent that starts the plugin, so that real processes communicate
// over real sockets. helperEnv selects how it acts.
const (
	helperEnv = "OUTRIDER_PLUGIN_TEST_HELPER" // driver, device, role or agent
	closedEnv = "OUTRIDER_PLUGIN_TEST_CLOSED" // the path of a file that the stub creates in Close
)

func TestMain(m *testing.M) {
	switch os.Getenv(helperEnv) {
	case "driver":
		Serve(stubDriver)
	case "device":
		Serve(stubDevice)
	case "role":
		p := stubDriver
		p.Roles = []func() bool{func() bool { return false }, func() bool { fmt.Println("a role's work"); return true }}
		Serve(p)
	case "agent":
		agentMain()
	default:
		os.Exit(m.Run())
	}
}

type stubConfig struct {
	Greeting string `codec:"greeting" default:"hello" doc:"What it says."`
}

type stubTask struct {
	Command string `codec:"command" required:"true" doc:"The program."`
}

var (
	stubConfigSchema = schema.Of[stubConfig]()
	stubTaskSchema   = schema.Of[stubTask]()

	stubDriver = Plugin{
		Name:       "stub",
		Summary:    "a driver that runs nothing",
		Config:     stubConfigSchema,
		TaskConfig: stubTaskSchema,
		Driver: func(_ context.Context, log hclog.Logger) drivers.DriverPlugin {
			return &stub{log: log, calls: map[string]context.Context{}}
		},
		Commands: []Command{
			{Name: "list", Help: "list what there is", Run: func(_ context.Context, args []string) error {
				flags := flag.NewFlagSet("list", flag.ContinueOnError)
				all := flags.Bool("all", false, "list more")
				args, err := Usage{Binary: "nomad-driver-stub", Command: "list", Arguments: "[-all] THING…",
					About: "Lists what there is.", Most: 9}.Parse(flags, args, os.Stdout)
				if err == nil {
					fmt.Println("listed", args, *all)
				}
				return err
			}},
			{Name: "wait", Help: "wait for a minute", Run: func(context.Context, []string) error {
				fmt.Println("waits")
				time.Sleep(time.Minute)
				return nil
			}},
			{Name: "undo", Help: "undo it at the end", Undoes: true, Run: func(ctx context.Context, _ []string) error {
				fmt.Println("waits")
				<-ctx.Done()
				return errors.New("undone")
			}},
			{Name: "fail", Help: "fail", Run: func(context.Context, []string) error { return errors.New("nothing there") }},
		},
	}

	stubDevice = Plugin{
		Name:    "stub",
		Summary: "a device plugin without devices",
		Config:  stubConfigSchema,
		Device: func(context.Context, hclog.Logger) device.DevicePlugin {
			return &stubDev{}
		},
	}
)

// stub implements the methods that the tests call; all others panic.
type stub struct {
	drivers.DriverPlugin
	log    hclog.Logger
	config stubConfig

	mu    sync.Mutex
	calls map[string]context.Context
}

func (s *stub) PluginInfo() (*base.PluginInfoResponse, error) {
	return Info(base.PluginTypeDriver, drivers.ApiVersion010, "stub"), nil
}
func (s *stub) ConfigSchema() (*hclspec.Spec, error) { return stubConfigSchema.Spec(), nil }
func (s *stub) SetConfig(c *base.Config) (err error) {
	s.config, err = stubConfigSchema.Decode(c.PluginConfig)
	return err
}

// TaskConfigSchema also writes to stderr, through the logger and directly.
func (s *stub) TaskConfigSchema() (*hclspec.Spec, error) {
	raw := os.NewFile(2, "stderr")
	for range 10 {
		s.log.Info("asked for the schema")
		fmt.Fprintln(raw, "asked for the schema")
	}
	return stubTaskSchema.Spec(), nil
}

func (s *stub) Capabilities() (*drivers.Capabilities, error) {
	return &drivers.Capabilities{
		SendSignals: true, MountConfigs: drivers.MountConfigSupportNone,
		DisableLogCollection: true, DynamicWorkloadUsers: true,
	}, nil
}

// StartCall stores the context for the StartTask call that follows.
func (s *stub) StartCall(ctx context.Context, id string) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[id] = ctx
	return func() { s.note(id, "done") }
}

// StartTask waits until its caller is gone, except for the task "quick".
func (s *stub) StartTask(c *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	s.mu.Lock()
	ctx := s.calls[c.ID]
	s.mu.Unlock()
	s.note(c.ID, "begun")
	if c.ID == "quick" {
		return drivers.NewTaskHandle(1), nil, nil
	}
	<-ctx.Done()
	s.note(c.ID, ctx.Err().Error())
	return nil, nil, ctx.Err()
}

// note appends a line to a file for the task, next to the file that Close creates.
func (s *stub) note(id, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := os.OpenFile(os.Getenv(closedEnv)+"-"+id, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		fmt.Fprintln(f, what)
		f.Close()
	}
}

// InspectTask returns the greeting in the current configuration as the task's name.
func (s *stub) InspectTask(string) (*drivers.TaskStatus, error) {
	return &drivers.TaskStatus{Name: s.config.Greeting}, nil
}

func (s *stub) Close() error { return os.WriteFile(os.Getenv(closedEnv), nil, 0o600) }

type stubDev struct{ device.DevicePlugin }

func (*stubDev) PluginInfo() (*base.PluginInfoResponse, error) {
	return Info(base.PluginTypeDevice, device.ApiVersion010, "stub"), nil
}
func (*stubDev) ConfigSchema() (*hclspec.Spec, error) { return stubConfigSchema.Spec(), nil }
func (*stubDev) SetConfig(*base.Config) error         { return nil }
func (*stubDev) Reserve(ids []string) (*device.ContainerReservation, error) {
	return &device.ContainerReservation{Envs: map[string]string{"IDS": strings.Join(ids, ",")}}, nil
}
func (*stubDev) Stats(context.Context, time.Duration) (<-chan *device.StatsResponse, error) {
	return nil, errors.New("no statistics")
}

// launched describes the plugin that an agent has started. The agent prints it.
type launched struct {
	PID  int
	Addr string
}

// agentMain starts the plugin as Nomad does, prints its pid and address (launched) as JSON, and waits to be killed. On
// SIGUSR1 it closes its connection to the plugin and keeps running.
func agentMain() {
	os.Setenv(helperEnv, "driver") // the client passes its environment on to the plugin
	cmd := exec.Command(os.Args[0])
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: base.Handshake, Plugins: clientPlugins, Cmd: cmd,
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC}, Logger: hclog.NewNullLogger(),
	})
	rpc, err := client.Client()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	disconnect := make(chan os.Signal, 1)
	signal.Notify(disconnect, syscall.SIGUSR1)
	r := client.ReattachConfig()
	_ = json.NewEncoder(os.Stdout).Encode(launched{PID: r.Pid, Addr: r.Addr.String()})
	for end := time.After(5 * time.Minute); ; { // so that the process ends even if the test was killed
		select {
		case <-disconnect:
			rpc.(*goplugin.GRPCClient).Conn.Close()
			fmt.Println("disconnected")
		case <-end:
			return
		}
	}
}

var clientPlugins = map[string]goplugin.Plugin{
	base.PluginTypeBase:   &base.PluginBase{},
	base.PluginTypeDriver: drivers.NewDriverPlugin(nil, hclog.NewNullLogger()),
}
