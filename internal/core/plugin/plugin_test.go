// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/helper/pluginutils/loader"
	"github.com/hashicorp/nomad/nomad/structs/config"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/drivers"
	sproto "github.com/hashicorp/nomad/plugins/shared/structs/proto"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// dispense starts the stub with Nomad's own plugin loader. At the end of the test it checks that the stub ends when
// Nomad ends it, and leaves no files.
func dispense(t *testing.T, kind string, configs map[string]any) loader.PluginInstance {
	t.Helper()
	dir := t.TempDir()
	h := newHome(t)
	t.Setenv("TMPDIR", h.temp)
	t.Setenv(closedEnv, h.closed)
	t.Setenv(helperEnv, kind)
	name := "nomad-" + kind + "-stub"
	exe, err := os.Executable()
	must.NoError(t, err)
	script := fmt.Sprintf("#!/bin/sh\nexec '%s'\n", exe)
	must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	l, err := loader.NewPluginLoader(&loader.PluginLoaderConfig{
		Logger: hclog.NewNullLogger(), PluginDir: dir, SupportedVersions: loader.AgentSupportedApiVersions,
		Configs: []*config.PluginConfig{{Name: name, Config: configs}},
	})
	must.NoError(t, err)
	var log *lockedBuffer
	dispensed := func() loader.PluginInstance {
		log = &lockedBuffer{}
		instance, err := l.Dispense("stub", kind, nil, hclog.New(&hclog.LoggerOptions{Output: log}))
		must.NoError(t, err)
		return instance
	}
	instance := dispensed()
	t.Cleanup(func() {
		// on a busy machine, the plugin may need more than the 2 s after which go-plugin kills it (client.go, Kill)
		ended := instance
		for try := 1; !ends(t, ended, log); try++ {
			must.NotEq(t, 5, try, must.Sprint("it does not end on request"))
			os.Remove(h.closed)
			os.RemoveAll(h.temp)
			must.NoError(t, os.Mkdir(h.temp, 0o700))
			ended = dispensed()
		}
		if kind == "driver" {
			h.wantClosed(t)
		}
		h.wantEmpty(t)
	})
	return instance
}

// ends asks an instance to end, and reports whether it did so before go-plugin killed it.
func ends(t *testing.T, instance loader.PluginInstance, log *lockedBuffer) bool {
	t.Helper()
	reattach, _ := instance.ReattachConfig()
	instance.Kill()
	wantEnd(t, reattach.Pid)
	return !strings.Contains(log.String(), "plugin failed to exit gracefully")
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.String()
}

// home has the paths of the files of one plugin process.
type home struct {
	temp   string // its TMPDIR, where it makes its sockets
	closed string // the file that the stub creates in Close
}

func newHome(t *testing.T) home {
	t.Helper()
	dir, err := os.MkdirTemp("", "op") // a short path: that of a socket may have 107 bytes (unix(7))
	must.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return home{temp: dir, closed: filepath.Join(t.TempDir(), "closed")}
}

// command returns a command that runs the test binary with kind as the value of helperEnv.
func (h home) command(ctx context.Context, t *testing.T, kind string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	must.NoError(t, err)
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), "TMPDIR="+h.temp, closedEnv+"="+h.closed, helperEnv+"="+kind)
	return cmd
}

func (h home) wantClosed(t *testing.T) {
	t.Helper()
	_, err := os.Stat(h.closed)
	test.NoError(t, err, test.Sprint("the driver was not closed"))
}

func (h home) wantEmpty(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(h.temp)
	must.NoError(t, err)
	for _, e := range entries {
		t.Errorf("left behind: %s", e.Name())
	}
}

func TestServe_LoadsADriver(t *testing.T) {
	d, ok := dispense(t, "driver", map[string]any{"greeting": "moin"}).Plugin().(drivers.DriverPlugin)
	must.True(t, ok, must.Sprint("not a driver"))
	t.Run("reports its name and version", func(t *testing.T) {
		info, err := d.PluginInfo()
		must.NoError(t, err, must.Sprintf("got %+v", info))
		must.Eq(t, "stub", info.Name, must.Sprintf("got %+v", info))
		must.Eq(t, Version(), info.PluginVersion, must.Sprintf("got %+v", info))
		test.Eq(t, base.PluginTypeDriver, info.Type, test.Sprintf("got %+v", info))
	})
	t.Run("gets its configuration", func(t *testing.T) {
		st, err := d.InspectTask("x")
		must.NoError(t, err, must.Sprintf("got %+v", st))
		test.Eq(t, "moin", st.Name, test.Sprintf("got %+v", st))
	})
	t.Run("every capability is sent", func(t *testing.T) {
		caps, err := d.Capabilities()
		must.NoError(t, err)
		must.Eq(t, drivers.MountConfigSupportNone, caps.MountConfigs, must.Sprintf("got %+v", caps))
		must.True(t, caps.DisableLogCollection, must.Sprintf("got %+v", caps))
		must.True(t, caps.SendSignals, must.Sprintf("got %+v", caps))
		test.True(t, caps.DynamicWorkloadUsers, test.Sprintf("got %+v", caps))
	})
	t.Run("a task of more than 4 MiB is received", func(t *testing.T) {
		large := &drivers.TaskConfig{ID: "quick", Env: map[string]string{"BIG": strings.Repeat("x", 10<<20)}}
		_, _, err := d.StartTask(large)
		test.NoError(t, err)
	})
}

// A huge config block, whose size a job's author chooses, must not exhaust the memory of the plugin, which serves every
// task of the node.
func TestServe_RefusesALargeTaskConfig(t *testing.T) {
	instance := dispense(t, "driver", nil)
	d := instance.Plugin().(drivers.DriverPlugin)
	reattach, _ := instance.ReattachConfig()
	start := func(bytes int) error {
		c := &drivers.TaskConfig{ID: "quick"}
		must.NoError(t, c.EncodeConcreteDriverConfig(map[string]any{"command": strings.Repeat("x", bytes)}))
		_, _, err := d.StartTask(c)
		return err
	}
	test.NoError(t, start(maxTaskConfig-1000), test.Sprint("a block below the limit"))
	begun := os.Getenv(closedEnv) + "-quick" // StartTask of the stub appends to this file
	must.NoError(t, os.Remove(begun))
	for _, bytes := range []int{maxTaskConfig, 50e6} {
		err := start(bytes)
		test.ErrorContains(t, err, fmt.Sprintf("the limit is %d: move large content to a template",
			maxTaskConfig),
			test.Sprintf("%d bytes: got %.200v", bytes, err))
	}
	if b, err := os.ReadFile(begun); err == nil {
		t.Errorf("the driver was called: %s", b)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", reattach.Pid))
	must.NoError(t, err)
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	var kB int
	_, err = fmt.Sscan(peak, &kB)
	must.NoError(t, err, must.Sprintf("the plugin took %d kB for it", kB))
	test.False(t, kB > 512<<10, test.Sprintf("the plugin took %d kB for it", kB))
	t.Logf("at its largest the plugin had %d kB", kB)
}

func TestServe_LoadsADevicePlugin(t *testing.T) {
	d, ok := dispense(t, "device", nil).Plugin().(device.DevicePlugin)
	must.True(t, ok, must.Sprint("not a device plugin"))
	r, err := d.Reserve([]string{"a", "b"})
	must.NoError(t, err, must.Sprintf("got %+v", r))
	test.Eq(t, "a,b", r.Envs["IDS"], test.Sprintf("got %+v", r))
}

// fleet is an agent and the plugin that it started, with the means to re-attach to the plugin.
type fleet struct {
	home
	t      *testing.T
	agent  *exec.Cmd
	said   *bufio.Reader // the agent's output
	plugin launched
}

func startAgent(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, home: newHome(t)}
	f.agent = f.command(context.Background(), t, "agent")
	f.agent.Stderr = os.Stderr
	out, err := f.agent.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, f.agent.Start())
	t.Cleanup(func() {
		f.killAgent()
		if f.plugin.PID != 0 && alive(f.plugin.PID) {
			t.Errorf("plugin %d is left", f.plugin.PID)
			_ = syscall.Kill(f.plugin.PID, syscall.SIGKILL)
		}
	})
	f.said = bufio.NewReader(out)
	line, err := f.said.ReadBytes('\n')
	must.NoError(t, err)
	must.NoError(t, json.Unmarshal(line, &f.plugin))
	return f
}

func (f *fleet) killAgent() {
	if f.agent.ProcessState == nil {
		_ = f.agent.Process.Kill()
		_ = f.agent.Wait()
	}
}

// attach connects as a restarted agent does. The returned function disconnects abruptly, as if that
// agent had been killed.
func (f *fleet) attach() (drivers.DriverPlugin, func()) {
	f.t.Helper()
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: base.Handshake, Plugins: clientPlugins,
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC}, Logger: hclog.NewNullLogger(),
		Reattach: &goplugin.ReattachConfig{
			Protocol: goplugin.ProtocolGRPC, Pid: f.plugin.PID, Addr: &net.UnixAddr{Name: f.plugin.Addr, Net: "unix"},
		},
	})
	rpc, err := client.Client()
	if err != nil {
		f.t.Fatal(err)
	}
	raw, err := rpc.Dispense(base.PluginTypeDriver)
	if err != nil {
		f.t.Fatal(err)
	}
	return raw.(drivers.DriverPlugin), func() { rpc.(*goplugin.GRPCClient).Conn.Close() }
}

// wantCleanEnd fails the test if the plugin does not end by itself, or leaves files behind.
func (f *fleet) wantCleanEnd() {
	f.t.Helper()
	wantEnd(f.t, f.plugin.PID)
	f.wantClosed(f.t)
	f.wantEmpty(f.t)
}

func (f *fleet) wantAlive(when string) {
	f.t.Helper()
	if !alive(f.plugin.PID) {
		f.t.Fatalf("the plugin is dead %s", when)
	}
}

func alive(pid int) bool {
	st, err := task.ReadStat(pid)
	return err == nil && !st.Zombie
}

// soon is a time limit for events that should happen immediately, even on a busy machine.
const soon = time.Minute

func wantEnd(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(soon); alive(pid); time.Sleep(20 * time.Millisecond) {
		must.False(t, time.Now().After(deadline), must.Sprintf("plugin %d still runs after %v", pid, soon))
	}
}

// A plugin ends with the agent that started it, which reads its stderr. A connection of another agent, which has
// re-attached, does not prevent this.
func TestServe_EndsWithTheAgentThatStartedIt(t *testing.T) {
	t.Parallel()
	f := startAgent(t)
	_, disconnect := f.attach()
	defer disconnect()
	f.killAgent()
	f.wantCleanEnd()
}

func TestServe_StaysWhenARunningAgentDisconnects(t *testing.T) {
	t.Parallel()
	f := startAgent(t)
	must.NoError(t, f.agent.Process.Signal(syscall.SIGUSR1))
	line, err := f.said.ReadString('\n')
	must.NoError(t, err)
	must.Eq(t, "disconnected\n", line)
	driver, disconnect := f.attach()
	defer disconnect()
	_, err = driver.Capabilities()
	test.NoError(t, err)
	f.killAgent()
	f.wantCleanEnd()
}

func TestServe_CancelsAStartWhenItsAgentIsGone(t *testing.T) {
	t.Parallel()
	f := startAgent(t)
	other, leave := f.attach()
	driver, disconnect := f.attach()
	noted := func(id, want string) {
		t.Helper()
		var got []byte
		for end := time.Now().Add(soon); string(got) != want; time.Sleep(5 * time.Millisecond) {
			must.False(t, time.Now().After(end), must.Sprintf("task %s: noted %q, want %q", id, got, want))
			got, _ = os.ReadFile(f.closed + "-" + id)
		}
	}
	_, _, err := driver.StartTask(&drivers.TaskConfig{ID: "quick"})
	test.NoError(t, err)
	noted("quick", "begun\ndone\n")
	var calls sync.WaitGroup
	for id, d := range map[string]drivers.DriverPlugin{"a": driver, "b": driver, "c": other} {
		calls.Go(func() { _, _, _ = d.StartTask(&drivers.TaskConfig{ID: id}) })
	}
	for _, id := range []string{"a", "b", "c"} {
		noted(id, "begun\n")
	}
	disconnect()
	noted("a", "begun\ncontext canceled\ndone\n")
	noted("b", "begun\ncontext canceled\ndone\n")
	f.wantAlive("after a start that ended")
	noted("c", "begun\n") // the call of another agent continues
	leave()
	noted("c", "begun\ncontext canceled\ndone\n")
	calls.Wait()
	f.killAgent()
	f.wantCleanEnd()
}

func TestSignals_DoNotEndAConnectedPlugin(t *testing.T) {
	t.Parallel()
	f := startAgent(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGTERM} {
		must.NoError(t, syscall.Kill(f.plugin.PID, sig))
		time.Sleep(200 * time.Millisecond)
		f.wantAlive("after " + sig.String() + " with an agent connected")
	}
	f.killAgent()
	f.wantCleanEnd()
}

func TestCommandLine_RunsCommands(t *testing.T) {
	exe, err := os.Executable()
	must.NoError(t, err)
	for name, c := range map[string]struct {
		helper string
		args   []string
		code   int
		want   []string
	}{
		"without arguments it prints the help": {"driver", nil, 0, []string{
			"nomad-driver-stub " + Version() + ": a driver that runs nothing", "plugin_dir = \"/opt/nomad/plugins\"\n",
			"plugin \"nomad-driver-stub\" {\n  config {\n    # What it says.\n    # greeting = \"hello\"\n  " +
				"}\n}", `driver = "stub"`, "list       list what there is"}},
		"the help of a device plugin shows a device block": {"device", []string{"help"}, 0,
			[]string{"resources {\n  device \"TYPE\" {}\n}"}},
		"version":   {"driver", []string{"version"}, 0, []string{"nomad-driver-stub " + Version() + " (untagged build)\n"}},
		"--version": {"driver", []string{"--version"}, 0, []string{Version()}},
		"options": {"driver", []string{"options"}, 0, []string{"## Plugin configuration\n\n| Option",
			"| `greeting` | string | `\"hello\"` |", "## Task configuration", "| `command` | string | required |"}},
		"options of a device plugin": {"device", []string{"options"}, 0, []string{"| `greeting` |"}},
		"a plugin's command":         {"driver", []string{"list", "a", "-all", "b"}, 0, []string{"listed [a b] true"}},
		"help of a command": {"driver", []string{"list", "a", "-h"}, 0, []string{
			"nomad-driver-stub list [-all] THING…\n\nLists what there is.\n\n  -all\n"}},
		"wrong option of a command": {"driver", []string{"list", "-al"}, 1,
			[]string{"nomad-driver-stub list: flag provided but not defined: -al; usage: list [-all] THING…\n"}},
		"a command that fails": {"driver", []string{"fail"}, 1, []string{"nomad-driver-stub fail: nothing there\n"}},
		"an unknown command": {"driver", []string{"lst"}, 2,
			[]string{`unknown command "lst": see "nomad-driver-stub help"`}},
		"config": {"driver", []string{"config"}, 0, []string{"plugin \"nomad-driver-stub\" {\n  config {\n" +
			"    # What it says.\n    # greeting = \"hello\"\n  }\n}\n"}},
		"a role takes precedence": {"role", []string{"lst"}, 0, []string{"a role's work\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(exe)
			cmd.Args = append([]string{"/some/where/nomad-driver-stub"}, c.args...)
			cmd.Env = append(os.Environ(), helperEnv+"="+c.helper)
			out, _ := cmd.CombinedOutput()
			code := cmd.ProcessState.ExitCode()
			test.Eq(t, c.code, code, test.Sprint("exit code"))
			for _, want := range c.want {
				test.StrContains(t, string(out), want, test.Sprintf("no %q in\n%s", want, out))
			}
		})
	}
}

func TestCommandLine_EndsAtASignal(t *testing.T) {
	exe, err := os.Executable()
	must.NoError(t, err)
	for name, want := range map[string]string{"wait": "signal: interrupt", "undo": "exit status 1"} {
		cmd := exec.Command(exe)
		cmd.Args = []string{"nomad-driver-stub", name}
		cmd.Env = append(os.Environ(), helperEnv+"=driver")
		out, err := cmd.StdoutPipe()
		must.NoError(t, err)
		must.NoError(t, cmd.Start())
		_, err = out.Read(make([]byte, 1))
		must.NoError(t, err)
		must.NoError(t, cmd.Process.Signal(os.Interrupt))
		late := time.AfterFunc(50*time.Second, func() { _ = cmd.Process.Kill() })
		test.ErrorContains(t, cmd.Wait(), want, test.Sprint(name))
		late.Stop()
	}
}

func TestVersion_CanBeParsedByNomad(t *testing.T) {
	for given, want := range map[string]string{
		"":        "0.0.0-dev",
		"(devel)": "0.0.0-dev",
		"v1.2.3":  "1.2.3",
		"0.2.0":   "0.2.0",
		"v0.2.1-0.20261121030303-0123456789ab+dirty": "0.2.1-0.20261121030303-0123456789ab+dirty",
		"next": "0.0.0-dev",
	} {
		test.Eq(t, want, normal(given), test.Sprint(given))
	}
}

func TestVersionText_DistinguishesReleasesFromOtherBuilds(t *testing.T) {
	of := func(modified string) *debug.BuildInfo {
		return &debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789"},
			{Key: "vcs.time", Value: "2026-11-23T00:18:39Z"}, {Key: "vcs.modified", Value: modified}}}
	}
	const commit = "of commit 0123456789 (2026-11-23T00:18:39Z), by "
	for _, c := range []struct {
		version     string
		info        *debug.BuildInfo
		first, next string
	}{
		{"0.1.0", of("false"), "x 0.1.0\n", commit},
		{"0.2.0-rc.1", of("false"), "x 0.2.0-rc.1\n", commit},
		{"0.1.0", nil, "x 0.1.0\n", "of an unknown commit, by "}, // the version was set with -ldflags
		{"0.0.0-20261123001839-0123456789ab", of("false"), "x 0.0.0-20261123001839-0123456789ab (untagged build)\n", commit},
		{"0.2.1-0.20261123001839-0123456789ab", of("false"),
			"x 0.2.1-0.20261123001839-0123456789ab (untagged build)\n", commit},
		{"0.1.0+dirty", of("true"), "x 0.1.0+dirty (untagged build, with uncommitted changes)\n", commit},
		{"0.0.0-dev", nil, "x 0.0.0-dev (untagged build)\n", "of an unknown commit, by "},
	} {
		got := versionText("x", c.version, c.info)
		test.True(t, strings.HasPrefix(got, c.first+c.next), test.Sprintf("%s: got %q", c.version, got))
	}
}

// Parts of an error may come from a job or a task, and Nomad prints them unchanged.
func TestPrintableErrors_KeepCodesAndDetails(t *testing.T) {
	for _, given := range []error{
		errors.New("a\x1b[2Jb\nc"), status.Error(codes.Unknown, "a\x1b[2Jb\nc"),
	} {
		_, err := complete(nil)(t.Context(), nil, nil, func(context.Context, any) (any, error) { return nil, given })
		test.Eq(t, "a [2Jb\nc", status.Convert(err).Message())
		test.Eq(t, codes.Unknown, status.Code(err))
	}
	again := status.New(codes.FailedPrecondition, "again\a")
	details, err := again.WithDetails(&sproto.RecoverableError{Recoverable: true})
	must.NoError(t, err)
	_, err = complete(nil)(t.Context(), nil, nil, func(context.Context, any) (any, error) { return nil, details.Err() })
	test.Eq(t, "again ", status.Convert(err).Message())
	test.Len(t, 1, status.Convert(err).Details())
	resp, err := complete(nil)(t.Context(), nil, nil, func(context.Context, any) (any, error) { return 7, nil })
	test.NoError(t, err)
	test.Eq[any](t, 7, resp)
}
