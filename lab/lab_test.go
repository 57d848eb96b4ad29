package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// quiet is a lab in a directory of its own that prints into a buffer.
func quiet(t *testing.T) (*Lab, *bytes.Buffer) {
	var b bytes.Buffer
	dir := t.TempDir()
	return &Lab{
		root: dir, dir: filepath.Join(dir, ".lab"), runtime: agent.Auto,
		steps: term.New(&b), out: &b, errOut: &b,
		docker:   func(context.Context) error { return errors.New("no daemon") },
		image:    func(context.Context, func(string, ...any)) (string, error) { return "img:1", nil },
		hasImage: func(context.Context) bool { return false },
	}, &b
}

func TestChoose_FollowsDockerAndTheRequest(t *testing.T) {
	no := errors.New("broken")
	for _, tc := range []struct {
		name          string
		asked         agent.Runtime
		docker, image error
		want          agent.Runtime
		why, err      string
	}{
		{name: "docker answers", asked: agent.Auto, want: agent.Container, why: "container from img:1"},
		{name: "no docker", asked: agent.Auto, docker: no, want: agent.Host, why: "Docker does not answer"},
		{name: "no image", asked: agent.Auto, image: no, want: agent.Host, why: "since broken"},
		{name: "the host was asked for", asked: agent.Host, want: agent.Host, why: "host process"},
		{name: "a container was asked for without docker", asked: agent.Container, docker: no,
			err: "a container was asked for: broken"},
		{name: "a container was asked for without an image", asked: agent.Container, image: no,
			err: "a container was asked for: broken"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, _ := quiet(t)
			l.runtime = tc.asked
			l.docker = func(context.Context) error { return tc.docker }
			l.image = func(context.Context, func(string, ...any)) (string, error) { return "img:1", tc.image }
			got, _, why, err := l.choose(t.Context())
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil || got != tc.want || !strings.Contains(why, tc.why) {
				t.Errorf("got %s, %q, %v", got, why, err)
			}
		})
	}
}

func TestLab_WithoutALab(t *testing.T) {
	l, out := quiet(t)
	if err := l.Down(t.Context()); err != nil || !strings.Contains(out.String(), "nothing to do") {
		t.Errorf("down: %v, %s", err, out)
	}
	if err := l.Status(t.Context()); err != nil || !strings.Contains(out.String(), "mage lab:up") {
		t.Errorf("status: %v, %s", err, out)
	}
	for name, f := range map[string]func(context.Context) error{
		"shell":  l.Shell,
		"logs":   func(ctx context.Context) error { return l.Logs(ctx, "") },
		"stop":   func(ctx context.Context) error { return l.Stop(ctx, "x") },
		"reload": func(ctx context.Context) error { return l.Reload(ctx, "") },
	} {
		if err := f(t.Context()); !errors.Is(err, errDown) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := l.Run(t.Context(), "missing.nomad.hcl"); !errors.Is(err, fs.ErrNotExist) ||
		strings.Contains(out.String(), "starting") {
		t.Errorf("run of a file that does not exist: %v\n%s", err, out)
	}
}

func TestRows_ShowEachPluginsHealth(t *testing.T) {
	got := rows([]nomad.Driver{
		{Name: "a", Version: "1.0.0", Detected: true, Healthy: true, Description: "Healthy"},
		{Name: "b", Detected: true, Description: "no cgroup"},
		{Name: "c", Description: "no kernel"},
		{Name: "d"},
		{Name: "raw_exec", Version: "1", Detected: true, Healthy: true},
	})
	var state []string
	for _, r := range got[1:] {
		state = append(state, r[0]+" "+r[1]+" "+r[2])
	}
	want := "a 1.0.0 healthy|b  unhealthy|c  undetected|d  missing|raw_exec built in healthy"
	if s := strings.Join(state, "|"); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
}

func TestReload_ReportsWhichTasksLivedOn(t *testing.T) {
	start := time.Unix(100, 0)
	run := func(f func(*task)) task {
		x := task{Job: "j", Alloc: "12345678-9", Name: "t", State: "running", Started: start}
		if f != nil {
			f(&x)
		}
		return x
	}
	before := map[string]task{"1": run(nil), "2": run(nil), "3": run(nil), "4": run(nil)}
	now := map[string]task{
		"1": run(nil),
		"2": run(func(x *task) { x.Restarts = 1 }),
		"3": run(func(x *task) { x.Started = start.Add(time.Second) }),
		// 4 does not run any more
		"5": run(nil), // is new
	}
	table, lost := compare(before, now)
	var verdicts []string
	for _, r := range table[1:] {
		verdicts = append(verdicts, r[3])
	}
	if want := "lived on|was started again|was started again|ended"; strings.Join(verdicts, "|") != want || lost != 3 {
		t.Errorf("got %v, %d lost", verdicts, lost)
	}
	if table[1][2] != "12345678" {
		t.Errorf("allocation %q", table[1][2])
	}
}

func TestHash_ChangesWithNomadAndPlugins(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "nomad")
	os.WriteFile(bin, []byte("1"), 0o755)
	none := map[string]string{usbLabel: "none"}
	base := agent.Options{Runtime: agent.Host, Binary: bin, Labels: none,
		Plugins: []agent.Plugin{labPlugin("/b/nomad-driver-a", usbNone), labPlugin("/b/"+usbPlugin, usbNone)}}
	first, err := hash(base)
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := hash(base); again != first {
		t.Error("the same is not the same")
	}
	sim := base
	sim.Plugins = []agent.Plugin{base.Plugins[0], labPlugin("/b/"+usbPlugin, usbSim)}
	if h, err := hash(sim); err != nil || h != first || configs(sim) == configs(base) {
		t.Errorf("a stick takes a new agent, or nothing: %v", err)
	}
	info := agent.Info{Runtime: agent.Host, Binary: bin, Labels: none, Plugins: []string{"nomad-driver-a", usbPlugin}}
	for _, tc := range []struct {
		name string
		f    func(*agent.Options)
		want string
	}{
		{"runtime", func(o *agent.Options) { o.Runtime = agent.Container }, "its runtime is host and not container"},
		{"plugins", func(o *agent.Options) { o.Plugins = append(o.Plugins, labPlugin("/b/nomad-device-b", usbNone)) },
			"with other plugins (nomad-driver-a, nomad-device-usb and not nomad-driver-a, nomad-device-usb, nomad-device-b)"},
		{"nomad", func(o *agent.Options) { o.Binary = bin + "2"; os.WriteFile(o.Binary, nil, 0o755) },
			"it runs " + bin + " and not " + bin + "2"},
		{"nomad's content", func(o *agent.Options) { os.WriteFile(bin, []byte("12"), 0o755) },
			"with another nomad binary or configuration"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := base
			o.Plugins = append([]agent.Plugin(nil), base.Plugins...)
			tc.f(&o)
			if h, err := hash(o); err != nil || h == first {
				t.Errorf("the hash does not change: %v", err)
			}
			if got := difference(info, o); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestUSB_IsAsAskedForOrAsBefore(t *testing.T) {
	for in, want := range map[string]usb{"": usbAsBefore, "none": usbNone, "sim": usbSim} {
		if got, err := parseUSB(in); err != nil || got != want {
			t.Errorf("%q: got %q, %v", in, got, err)
		}
	}
	if _, err := parseUSB("simulated"); err == nil || !strings.Contains(err.Error(), "want none") {
		t.Errorf("a wrong one: %v", err)
	}
	if got := usbAsBefore.chosen(t.Context(), t.TempDir()); got != usbNone {
		t.Errorf("a new lab has %q", got)
	}
	if c := usbNone.config(); strings.Contains(c, "device") || strings.Contains(c, "match_all") {
		t.Errorf("without being asked it publishes something: %s", c)
	}
}

func TestDeviceRows_HaveUsersAndReasons(t *testing.T) {
	got := deviceRows([]nomad.Device{
		{Group: "10c4/zigbee/ea60", ID: "10c4:ea60:1", Healthy: true, Users: []string{"a/t", "b/t"}},
		{Group: "10c4/zigbee/ea60 (unhealthy)", ID: "10c4:ea60:2", Description: "unplugged"},
	})
	var lines []string
	for _, r := range got[1:] {
		lines = append(lines, strings.Join(r, ";"))
	}
	want := "10c4/zigbee/ea60;10c4:ea60:1;healthy;a/t, b/t;|10c4/zigbee/ea60 (unhealthy);10c4:ea60:2;unhealthy;;unplugged"
	if s := strings.Join(lines, "|"); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
}

func TestReasons_OfAnUnplacedJob(t *testing.T) {
	got := reasons(map[string]*api.AllocationMetric{
		"g": {ConstraintFiltered: map[string]int{"missing drivers": 1},
			DimensionExhausted: map[string]int{"memory": 1, "devices: no devices match request": 1}},
		"h": {},
	})
	if want := "group g: devices: no devices match request (1 node), memory exhausted (1 node), " +
		"missing drivers (1 node); group h: no node is ready"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUnplaced_AdvisesOnDriversAndDevices(t *testing.T) {
	i := agent.Info{Plugins: []string{"nomad-driver-exec-lite", "nomad-driver-python"}}
	for _, tc := range []struct {
		driver nomad.Driver
		want   string
	}{
		{nomad.Driver{Name: "python", Healthy: true, Detected: true}, ""},
		{nomad.Driver{Name: "python", Version: "1", Description: "no Python"}, "driver python is undetected: no Python"},
		{nomad.Driver{Name: "python", Detected: true, Description: "no cgroup"}, "driver python is unhealthy: no cgroup"},
		{nomad.Driver{Name: "python"}, "driver python is missing: the agent did not load its plugin"},
		{nomad.Driver{Name: "docker"}, "driver docker is not in this lab, which has exec-lite, python and raw_exec"},
	} {
		if got := absence(tc.driver, i); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
	sim := agent.Info{Labels: map[string]string{usbLabel: "sim"}}
	for _, tc := range []struct {
		info    agent.Info
		plugged bool
		want    string
	}{{i, false, "lab:up -usb=sim"}, {sim, false, "lab:up"}, {sim, true, ""}} {
		if _, got := deviceAdvice(tc.info, tc.plugged); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

func TestReason_OfAFailedTask(t *testing.T) {
	event := func(kind, text string) *api.TaskEvent { return &api.TaskEvent{Type: kind, DisplayMessage: text} }
	exit := &api.TaskEvent{Type: api.TaskTerminated, DisplayMessage: "Exit Code: 1", ExitCode: 1}
	for _, tc := range []struct {
		name   string
		events []*api.TaskEvent
		want   string
	}{
		{"an exit", []*api.TaskEvent{event(api.TaskStarted, ""), exit, event(api.TaskNotRestarting, "Policy")},
			"Exit Code: 1"},
		{"an exit that its driver explains", []*api.TaskEvent{
			event(api.TaskDriverMessage, "built in 3 s"), event(api.TaskStarted, ""), exit,
			event(api.TaskDriverMessage, "Python: KeyError: 'a' (app.py:3)"), event(api.TaskNotRestarting, "Policy"),
		}, "Exit Code: 1\nPython: KeyError: 'a' (app.py:3)"},
		{"a start that failed", []*api.TaskEvent{
			event(api.TaskDriverMessage, "building"),
			event(api.TaskDriverFailure, "rpc error: code = Unknown desc = no such file"),
		}, "no such file"},
		{"another after a run", []*api.TaskEvent{
			event(api.TaskStarted, ""), exit, event(api.TaskDriverMessage, "of the first"), event(api.TaskRestarting, ""),
			event(api.TaskDriverFailure, "no memory"),
		}, "no memory"},
		{"an artifact", []*api.TaskEvent{event(api.TaskArtifactDownloadFailed, "404"), event(api.TaskNotRestarting, "")},
			"404"},
		{"a hook", []*api.TaskEvent{event(hookFailed, "devices: gone")}, "devices: gone"},
		{"a template", []*api.TaskEvent{{Type: api.TaskKilling, DisplayMessage: "Template failed: x", FailsTask: true}},
			"Killing: Template failed: x"},
	} {
		if got := reason(tc.events); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestShell_HasTheAgentsAddress(t *testing.T) {
	a := &described{info: agent.Info{Runtime: agent.Container, Container: "c1"}}
	got := strings.Join(containerShell(a, false), " ")
	if want := "exec -i -e NOMAD_ADDR=http://127.0.0.1:4747 c1 bash"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := containerShell(a, true); !slices.Contains(got, "-t") {
		t.Errorf("on a terminal: %q", got)
	}
}

// described is an agent of which one only asks what it is.
type described struct {
	agent.Agent
	info  agent.Info
	ended error
}

func (d *described) Alive(context.Context) error { return d.ended }

func (d *described) Info() agent.Info { return d.info }
func (d *described) Address() string  { return "http://127.0.0.1:4747" }

func TestDown_ListsWhatPurgeRemoves(t *testing.T) {
	l, out := quiet(t)
	l.docker = func(context.Context) error { return nil }
	there := true
	l.hasImage = func(context.Context) bool { return there }
	l.removeImage = func(context.Context) error { there = false; return nil }
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	cache := filepath.Join(os.Getenv("XDG_CACHE_HOME"), "outrider")
	if err := os.MkdirAll(filepath.Join(cache, "vm"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"image outrider-lab:bookworm", cache, "mage lab:purge"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}

	// somebody's Nomad runs from the cache
	sleep, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(cache, "nomad")
	if err := os.WriteFile(program, sleep, 0o755); err != nil {
		t.Fatal(err)
	}
	user := exec.Command(program, "600")
	if err := user.Start(); err != nil {
		t.Fatal(err)
	}
	err = l.Purge(t.Context())
	user.Process.Kill()
	user.Wait()
	if err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a cache that is in use: %v", err)
	}
	if err := l.Purge(t.Context()); err != nil || there {
		t.Errorf("%v; the image is there: %v", err, there)
	}
	if _, err := os.Stat(cache); !os.IsNotExist(err) {
		t.Errorf("the cache is left: %v", err)
	}
	out.Reset()
	if err := l.Down(t.Context()); err != nil || strings.Contains(out.String(), "purge") {
		t.Errorf("with nothing left: %v, %s", err, out)
	}
}

func TestMissing_ShowsADriversOwnMessage(t *testing.T) {
	l, out := quiet(t)
	end := l.steps.Step("Waiting for the plugins")
	show := Missing(l.steps)
	show(nomad.ErrNotRegistered)
	show(&nomad.NotHealthyError{Drivers: []nomad.Driver{{Name: "a"}}}) // as it is at first
	if out.String() != "" {
		t.Errorf("at once: %q", out)
	}
	show(&nomad.NotHealthyError{Drivers: []nomad.Driver{{Name: "a", Detected: true, Description: "no cgroup"}}})
	if want := "       driver a is not healthy: no cgroup\n"; out.String() != want {
		t.Errorf("got %q, want %q", out, want)
	}
	end(nil, "")
}

func TestUp_NamesATakenPort(t *testing.T) {
	l, _ := quiet(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	l.port = taken.Addr().(*net.TCPAddr).Port
	if err := l.Up(t.Context(), ""); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("port %d, which LAB_PORT names, is taken", l.port)) {
		t.Errorf("asked for: %v", err)
	}
	ended := &described{ended: errors.New("gone"), info: agent.Info{HTTP: l.port}}
	if _, err := l.update(t.Context(), ended, agent.Options{}); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprintf("another program has its port %d", l.port)) {
		t.Errorf("the lab's own: %v", err)
	}
}

func TestPending_ReportsATaskThatStartsSlowly(t *testing.T) {
	l, out := quiet(t)
	r := &jobRun{lab: l, out: term.NewLines(out)}
	alloc := func(state string) []*api.Allocation {
		return []*api.Allocation{{TaskStates: map[string]*api.TaskState{"t": {
			State: state, Events: []*api.TaskEvent{{Type: api.TaskDownloadingArtifacts,
				DisplayMessage: "Client is downloading artifacts"}},
		}}}}
	}
	if r.pending(alloc("running")) || out.String() != "" {
		t.Errorf("one that runs: %q", out)
	}
	if want := "... t | Downloading Artifacts: Client is downloading artifacts\n"; !r.pending(alloc("pending")) ||
		out.String() != want {
		t.Errorf("got %q, want %q", out, want)
	}
}
