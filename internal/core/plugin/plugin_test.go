package plugin

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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

	"github.com/outrider-dev/outrider/internal/core/task"
)

// dispense loads the stub by Nomad's own loader, from a plugin directory.
func dispense(t *testing.T, kind string, configs map[string]any) loader.PluginInstance {
	t.Helper()
	dir := t.TempDir()
	h := newHome(t)
	t.Setenv("TMPDIR", h.temp)
	t.Setenv(closedEnv, h.closed)
	t.Setenv(helperEnv, kind)
	name := "nomad-" + kind + "-stub"
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec '%s'\n", exe)
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := loader.NewPluginLoader(&loader.PluginLoaderConfig{
		Logger: hclog.NewNullLogger(), PluginDir: dir, SupportedVersions: loader.AgentSupportedApiVersions,
		Configs: []*config.PluginConfig{{Name: name, Config: configs}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var log *lockedBuffer
	dispensed := func() loader.PluginInstance {
		log = &lockedBuffer{}
		instance, err := l.Dispense("stub", kind, nil, hclog.New(&hclog.LoggerOptions{Output: log}))
		if err != nil {
			t.Fatal(err)
		}
		return instance
	}
	instance := dispensed()
	t.Cleanup(func() {
		// go-plugin kills one that has not ended after 2 s (client.go, Kill), which a busy machine may be late for
		ended := instance
		for try := 1; !ends(t, ended, log); try++ {
			if try == 5 {
				t.Fatal("it does not end when it is asked to")
			}
			os.Remove(h.closed)
			os.RemoveAll(h.temp)
			if err := os.Mkdir(h.temp, 0o700); err != nil {
				t.Fatal(err)
			}
			ended = dispensed()
		}
		if kind == "driver" {
			h.wantClosed(t)
		}
		h.wantEmpty(t)
	})
	return instance
}

// ends makes an instance end, and reports whether it did by itself.
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

// home is what one plugin has for itself.
type home struct {
	temp   string // where it makes its sockets
	closed string // the file that the stub's Close makes
}

func newHome(t *testing.T) home {
	t.Helper()
	dir, err := os.MkdirTemp("", "op") // short: a socket's path may have 107 bytes (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return home{temp: dir, closed: filepath.Join(t.TempDir(), "closed")}
}

// command runs the test binary as a helper of that kind.
func (h home) command(ctx context.Context, t *testing.T, kind string, grace time.Duration) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), "TMPDIR="+h.temp, closedEnv+"="+h.closed, helperEnv+"="+kind,
		graceEnv+"="+grace.String())
	return cmd
}

func (h home) wantClosed(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(h.closed); err != nil {
		t.Errorf("the driver was not closed: %v", err)
	}
}

func (h home) wantEmpty(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(h.temp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left behind: %s", e.Name())
	}
}

func TestServe_LoadsADriver(t *testing.T) {
	d, ok := dispense(t, "driver", map[string]any{"greeting": "moin"}).Plugin().(drivers.DriverPlugin)
	if !ok {
		t.Fatal("not a driver")
	}
	t.Run("its name and version", func(t *testing.T) {
		info, err := d.PluginInfo()
		if err != nil || info.Name != "stub" || info.PluginVersion != Version() || info.Type != base.PluginTypeDriver {
			t.Errorf("got %+v, %v", info, err)
		}
	})
	t.Run("its configuration", func(t *testing.T) {
		st, err := d.InspectTask("x")
		if err != nil || st.Name != "moin" {
			t.Errorf("got %+v, %v", st, err)
		}
	})
	t.Run("every capability crosses the wire", func(t *testing.T) {
		caps, err := d.Capabilities()
		if err != nil {
			t.Fatal(err)
		}
		if caps.MountConfigs != drivers.MountConfigSupportNone || !caps.DisableLogCollection || !caps.SendSignals ||
			!caps.DynamicWorkloadUsers {
			t.Errorf("got %+v", caps)
		}
	})
	t.Run("a task of more than 4 MiB crosses the wire", func(t *testing.T) {
		large := &drivers.TaskConfig{ID: "quick", Env: map[string]string{"BIG": strings.Repeat("x", 10<<20)}}
		if _, _, err := d.StartTask(large); err != nil {
			t.Errorf("got %.300v", err)
		}
	})
	for id, want := range map[string]struct {
		code int
		err  string
	}{
		"ended":   {3, ""},
		"nil":     {0, `driver gave no exit result for task "nil"`},
		"closed":  {0, "channel closed"},
		"unknown": {0, drivers.ErrTaskNotFound.Error()},
	} {
		t.Run("the exit of a task that is "+id, func(t *testing.T) {
			ch, err := d.WaitTask(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			r := <-ch
			if r == nil || r.ExitCode != want.code || (r.Err == nil) != (want.err == "") || r.Err != nil &&
				!strings.Contains(r.Err.Error(), want.err) {
				t.Errorf("got %+v, want code %d and error %q", r, want.code, want.err)
			}
		})
	}
}

// A job's author says how large the config block is; the plugin serves every task of
// the node.
func TestServe_RefusesALargeTaskConfig(t *testing.T) {
	instance := dispense(t, "driver", nil)
	d := instance.Plugin().(drivers.DriverPlugin)
	reattach, _ := instance.ReattachConfig()
	start := func(bytes int) error {
		c := &drivers.TaskConfig{ID: "quick"}
		if err := c.EncodeConcreteDriverConfig(map[string]any{"command": strings.Repeat("x", bytes)}); err != nil {
			t.Fatal(err)
		}
		_, _, err := d.StartTask(c)
		return err
	}
	if err := start(maxTaskConfig - 1000); err != nil {
		t.Errorf("one that is not too large: %v", err)
	}
	begun := os.Getenv(closedEnv) + "-quick" // the stub's notes
	if err := os.Remove(begun); err != nil {
		t.Fatal(err)
	}
	for _, bytes := range []int{maxTaskConfig, 50e6} {
		err := start(bytes)
		if want := fmt.Sprintf("of which at most %d are taken: put what is large into a template",
			maxTaskConfig); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: got %.200v", bytes, err)
		}
	}
	if b, err := os.ReadFile(begun); err == nil {
		t.Errorf("the driver was asked: %s", b)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", reattach.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	var kB int
	if _, err := fmt.Sscan(peak, &kB); err != nil || kB > 512<<10 {
		t.Errorf("the plugin took %d kB for it, %v", kB, err)
	}
	t.Logf("at its largest the plugin had %d kB", kB)
}

func TestServe_LoadsADevicePlugin(t *testing.T) {
	d, ok := dispense(t, "device", nil).Plugin().(device.DevicePlugin)
	if !ok {
		t.Fatal("not a device plugin")
	}
	r, err := d.Reserve([]string{"a", "b"})
	if err != nil || r.Envs["IDS"] != "a,b" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// fleet is an agent, the plugin it started, and how to meet the plugin again.
type fleet struct {
	home
	t      *testing.T
	agent  *exec.Cmd
	plugin launched
}

func startAgent(t *testing.T, grace time.Duration) *fleet {
	t.Helper()
	f := &fleet{t: t, home: newHome(t)}
	f.agent = f.command(context.Background(), t, "agent", grace)
	f.agent.Stderr = os.Stderr
	out, err := f.agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.killAgent()
		if f.plugin.PID != 0 && alive(f.plugin.PID) {
			t.Errorf("plugin %d is left", f.plugin.PID)
			_ = syscall.Kill(f.plugin.PID, syscall.SIGKILL)
		}
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(line, &f.plugin); err != nil {
		t.Fatal(err)
	}
	return f
}

// killAgent returns a time before its death.
func (f *fleet) killAgent() time.Time {
	before := time.Now()
	if f.agent.ProcessState == nil {
		_ = f.agent.Process.Kill()
		_ = f.agent.Wait()
	}
	return before
}

// attach connects as a restarted agent does; the function returned disconnects
// without a word, as its death would.
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

// wantCleanEnd wants the plugin ended of its own accord, with nothing left.
func (f *fleet) wantCleanEnd() {
	f.t.Helper()
	wantEnd(f.t, f.plugin.PID)
	f.wantClosed(f.t)
	f.wantEmpty(f.t)
}

// wantCleanEndAfter wants it not to come before the grace period is over, which has
// begun at that time or later. However late the test looks, it is right.
func (f *fleet) wantCleanEndAfter(grace time.Duration, begun time.Time) {
	f.t.Helper()
	f.wantCleanEnd()
	if took := time.Since(begun); took < grace {
		f.t.Errorf("the plugin ended after %v, before the grace period of %v was over", took, grace)
	}
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

// soon is long enough on a busy machine.
const soon = time.Minute

func wantEnd(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(soon); alive(pid); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("plugin %d is still there after %v", pid, soon)
		}
	}
}

func TestOrphan_EndsAfterTheGracePeriod(t *testing.T) {
	t.Parallel()
	const grace = 3 * time.Second
	f := startAgent(t, grace)
	time.Sleep(2 * grace)
	f.wantAlive("though its agent is connected")
	f.wantCleanEndAfter(grace, f.killAgent())
}

func TestOrphan_StaysWhenALivingAgentDisconnects(t *testing.T) {
	t.Parallel()
	const grace = 3 * time.Second
	f := startAgent(t, grace)
	if err := f.agent.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * grace)
	f.wantAlive("though the agent that started it is alive")
	f.wantCleanEndAfter(grace, f.killAgent())
}

func TestOrphan_StaysWhenAnAgentReattaches(t *testing.T) {
	t.Parallel()
	const grace = 5 * time.Second // in which an agent has to connect
	f := startAgent(t, grace)
	f.killAgent()
	driver, disconnect := f.attach()
	time.Sleep(grace + grace/4)
	f.wantAlive("though an agent is connected")

	// stderr is a pipe without a reader since the first agent died
	if _, err := driver.TaskConfigSchema(); err != nil {
		t.Errorf("after a write to the closed stderr: %v", err)
	}
	if caps, err := driver.Capabilities(); err != nil || !caps.DisableLogCollection {
		t.Errorf("got %+v, %v", caps, err)
	}
	f.wantAlive("after writing to a closed stderr")

	disconnect()
	time.Sleep(grace / 10)
	_, disconnect = f.attach() // a second restart starts the period anew
	time.Sleep(grace)
	f.wantAlive("though an agent is connected again")
	begun := time.Now()
	disconnect()
	f.wantCleanEndAfter(grace, begun)
}

func TestServe_EndsAStartWithItsAgent(t *testing.T) {
	t.Parallel()
	f := startAgent(t, time.Hour)
	other, leave := f.attach()
	driver, disconnect := f.attach()
	noted := func(id, want string) {
		t.Helper()
		var got []byte
		for end := time.Now().Add(soon); string(got) != want; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("task %s: noted %q, want %q", id, got, want)
			}
			got, _ = os.ReadFile(f.closed + "-" + id)
		}
	}
	if _, _, err := driver.StartTask(&drivers.TaskConfig{ID: "quick"}); err != nil {
		t.Error(err)
	}
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
	noted("c", "begun\n") // another agent's
	leave()
	noted("c", "begun\ncontext canceled\ndone\n")
	calls.Wait()
	f.killAgent()
	if err := syscall.Kill(f.plugin.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	f.wantCleanEnd()
}

func TestSignals_DoNotEndAConnectedPlugin(t *testing.T) {
	t.Parallel()
	f := startAgent(t, time.Hour)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGTERM} {
		if err := syscall.Kill(f.plugin.PID, sig); err != nil {
			t.Fatal(err)
		}
		time.Sleep(200 * time.Millisecond)
		f.wantAlive("after " + sig.String() + " with an agent connected")
	}
	f.killAgent() // the grace period is an hour, but SIGTERM has come
	f.wantCleanEnd()
}

func TestSignals_SIGTERMEndsAnOrphan(t *testing.T) {
	t.Parallel()
	f := startAgent(t, time.Hour)
	f.killAgent()
	time.Sleep(300 * time.Millisecond)
	f.wantAlive("before SIGTERM")
	if err := syscall.Kill(f.plugin.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	f.wantCleanEnd()
}

func TestOrphan_EndsWithoutAConnection(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	cmd := h.command(ctx, t, "driver", 100*time.Millisecond)
	cmd.Env = append(cmd.Env, base.Handshake.MagicCookieKey+"="+base.Handshake.MagicCookieValue)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "no agent ever connected") {
		t.Errorf("got %v\n%s", err, out)
	}
	h.wantEmpty(t)
}

func TestCommandLine_AnswersAPerson(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		helper string
		args   []string
		code   int
		want   []string
	}{
		"without arguments it says what it is": {"driver", nil, 0, []string{
			"nomad-driver-stub " + Version() + ": a driver that runs nothing", "plugin_dir = \"" + filepath.Dir(exe),
			"plugin \"nomad-driver-stub\" {\n  config {\n    # What it says.\n    # greeting = \"hello\"\n  " +
				"}\n}", `driver = "stub"`, "list       list what there is"}},
		"a device plugin says how to get a device": {"device", []string{"help"}, 0,
			[]string{"resources {\n  device \"TYPE\" {}\n}"}},
		"version":   {"driver", []string{"version"}, 0, []string{"nomad-driver-stub " + Version() + "\n"}},
		"--version": {"driver", []string{"--version"}, 0, []string{Version()}},
		"options": {"driver", []string{"options"}, 0, []string{"## Plugin configuration\n\n| Option",
			"| `greeting` | string | `\"hello\"` |", "## Task configuration", "| `command` | string | required |"}},
		"docs is options":      {"device", []string{"docs"}, 0, []string{"| `greeting` |"}},
		"a command of its own": {"driver", []string{"list", "a"}, 0, []string{"listed [a]"}},
		"a command that fails": {"driver", []string{"fail"}, 1, []string{"nomad-driver-stub fail: nothing there\n"}},
		"an unknown command": {"driver", []string{"lst"}, 2,
			[]string{`command "lst" is not known: see "nomad-driver-stub help"`}},
		"a role before all else": {"role", []string{"lst"}, 0, []string{"a role's work\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(exe)
			cmd.Args = append([]string{"/some/where/nomad-driver-stub"}, c.args...)
			cmd.Env = append(os.Environ(), helperEnv+"="+c.helper)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}

func TestVersion_IsOneThatNomadParses(t *testing.T) {
	for given, want := range map[string]string{
		"":        "0.0.0-dev",
		"(devel)": "0.0.0-dev",
		"v1.2.3":  "1.2.3",
		"0.2.0":   "0.2.0",
		"v0.2.1-0.20261121030303-0123456789ab+dirty": "0.2.1-0.20261121030303-0123456789ab+dirty",
		"next": "0.0.0-dev",
	} {
		if got := normal(given); got != want {
			t.Errorf("%q: got %q, want %q", given, got, want)
		}
	}
}
