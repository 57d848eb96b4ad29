// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/lib/numalib"
	"github.com/hashicorp/nomad/helper/pluginutils/hclutils"
	"github.com/hashicorp/nomad/helper/testlog"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/testutils"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/harness"
)

// TestMain runs the tests, unless the test binary was started as the supervisor, the launcher or a plugin's binary.
func TestMain(m *testing.M) {
	testsupport.BeginRoles()
	supervisor.Main()
	if os.Getenv(binaryVar) != "" {
		Main(testPlugin(testInstance{}))
		return
	}
	os.Exit(testsupport.EndRoles(runTests(m)))
}

func runTests(m *testing.M) int {
	if os.Getenv(nonRootVar) != "" { // started by a test of this binary
		return m.Run()
	}
	// Nomad's harness leaves directories in TMPDIR, so the tests use a separate TMPDIR. Its path is short, because the
	// length of a socket's path is limited.
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("o%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	defer removeLeaves()
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv("TMPDIR", dir)
	return m.Run()
}

// removeLeaves kills the supervisors and their collectors, which would otherwise exit only after
// being idle for a while, and removes their cgroups.
func removeLeaves() {
	table, err := task.Processes()
	if err != nil {
		return
	}
	for _, p := range task.Descendants(table, os.Getpid()) {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID)); strings.HasPrefix(string(line),
			"outrider-supervisor\x00") {
			_ = unix.Kill(p.PID, unix.SIGKILL)
		}
	}
	s := cgroup.Detect("")
	end := time.Now().Add(30 * time.Second)
	for _, parent := range []string{
		filepath.Join(s.Mounts["systemd"], "nomad"), filepath.Join(s.Unified, "nomad"), filepath.Join(s.Root, "nomad.slice"),
	} {
		for _, node := range nodes { // only nodes of this test run
			leaves, _ := filepath.Glob(filepath.Join(parent, "outrider-*-"+shortID(node)+"*"))
			for _, leaf := range leaves {
				for unix.Rmdir(leaf) == unix.EBUSY && time.Now().Before(end) {
					time.Sleep(10 * time.Millisecond)
				}
			}
		}
	}
}

var nodes []string

// NewNode returns the id of a new agent's node, whose cgroups are removed when all tests have
// ended.
func NewNode() string {
	node := uuid.Generate()
	nodes = append(nodes, node)
	return node
}

type testConfig struct{ PluginOptions }

type testTask struct {
	Command string   `codec:"command" doc:"The program."`
	Args    []string `codec:"args" doc:"Its arguments."`
	TaskOptions
}

// testInstance is a driver that runs the command of a test's job, with the hooks that the test sets.
type testInstance struct {
	command     func(context.Context, testRequest) (*task.Command, error)
	ended       func(Ended) string
	defaultUser string
	engine      Engine // nil means the local engine
}

type testRequest = Request[testTask]

func (i testInstance) Command(ctx context.Context, r testRequest) (*task.Command, error) {
	if i.command != nil {
		return i.command(ctx, r)
	}
	return program(r)
}

func program(r testRequest) (*task.Command, error) {
	return r.Run(r.Config.Command, r.Config.Args...), nil
}

func (i testInstance) ReportExit(e Ended) string {
	if i.ended == nil {
		return ""
	}
	return i.ended(e)
}

func (i testInstance) DefaultUser() string { return i.defaultUser }

func testPlugin(i testInstance) Plugin[testConfig, testTask] {
	return Plugin[testConfig, testTask]{
		Name: "test-driver", Summary: "runs what a test says",
		New: func(testConfig, hclog.Logger) (Instance[testTask], error) {
			if i.engine != nil {
				return withEngine{i, i.engine}, nil
			}
			return i, nil
		},
		Commands: []plugin.Command{{Name: "say", Help: "say it back", Run: func(_ context.Context, args []string) error {
			fmt.Println("said", args)
			return nil
		}}},
		Roles: []func() bool{func() bool {
			if len(os.Args) != 2 || os.Args[1] != "role" {
				return false
			}
			fmt.Println("a role's work")
			return true
		}},
	}
}

// agent calls a driver as Nomad does. The test fails if the driver leaves anything behind.
type agent struct {
	t      *testing.T
	state  string // state_dir
	node   string
	share  string // v1: Nomad's shared cpuset, v2: its share.slice; empty if tasks get no cgroup
	made   []string
	cgroup cgroup.Support

	*testutils.DriverHarness
	driver   *Driver
	instance testInstance
}

// start makes a driver with these plugin options, such as log_collection.
func start(t *testing.T, options map[string]any) *agent {
	t.Helper()
	return startInstance(t, testInstance{}, options)
}

// detect retries if it finds nothing: on cgroup v2, another test's supervisor may be creating or
// removing the slice of its leaf.
func detect() cgroup.Support {
	found := cgroup.Detect("")
	for range 20 {
		if found.Mode != cgroup.None || os.Geteuid() != 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
		found = cgroup.Detect("")
	}
	return found
}

func startInstance(t *testing.T, w testInstance, options map[string]any) *agent {
	t.Helper()
	state, err := os.MkdirTemp("", "d")
	must.NoError(t, err)
	a := &agent{t: t, state: state, node: NewNode(), cgroup: detect(), instance: w}
	if a.cgroup.Mode == cgroup.V1 && a.cgroup.Mounts["cpuset"] != "" {
		a.makeShare()
	}
	if a.cgroup.Mode == cgroup.V2 {
		a.makeSlice()
	}
	t.Cleanup(func() {
		a.stopDriver()
		a.nothingLeft()
		os.RemoveAll(state)
	})
	a.startDriver(options)
	return a
}

func (a *agent) startDriver(options map[string]any) {
	a.t.Helper()
	if options == nil {
		options = map[string]any{}
	}
	config := defaultPluginOptions()
	config.StateDir = a.state
	if v, ok := options["log_collection"].(string); ok {
		config.LogCollection = v
	}
	config.DeniedHostUIDs, _ = options["denied_host_uids"].(string)
	config.DeniedHostGIDs, _ = options["denied_host_gids"].(string)
	config.DeniedEnvvars, _ = options["denied_envvars"].([]string)
	config.DynamicUsers, _ = options["dynamic_users"].(bool)
	if v, ok := options["seccomp"].(string); ok {
		config.Seccomp = v
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.t.Cleanup(cancel)
	a.driver = New(ctx, testlog.HCLogger(a.t), testPlugin(a.instance))
	a.DriverHarness = testutils.NewDriverHarness(a.t, a.driver)
	configure(a.t, a.DriverHarness, config)
}

func configure(t *testing.T, d drivers.DriverPlugin, o PluginOptions) {
	t.Helper()
	var packed []byte
	must.NoError(t, base.MsgPackEncode(&packed, &testConfig{o}))
	must.NoError(t, d.SetConfig(&base.Config{
		PluginConfig: packed,
		AgentConfig:  &base.AgentConfig{Driver: &base.ClientDriverConfig{Topology: topology}},
	}))
}

var topology = numalib.Scan(numalib.PlatformScanners(false))

// stopDriver ends the plugin; tasks keep running.
func (a *agent) stopDriver() {
	harness.Kill(a.DriverHarness)
	a.driver.Close()
}

// restart replaces the driver with one that has no state, like a new plugin process.
func (a *agent) restart() {
	a.stopDriver()
	a.startDriver(nil)
}

func (a *agent) makeShare() {
	parent := "nomad-outrider-test-" + uuid.Short()
	a.share = filepath.Join(a.cgroup.Root, "cpuset", parent, "share")
	for _, dir := range []string{filepath.Dir(a.share), a.share} {
		a.mkdir(dir)
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			b, err := os.ReadFile(filepath.Join(a.cgroup.Root, "cpuset", file))
			must.NoError(a.t, err)
			must.NoError(a.t, os.WriteFile(filepath.Join(dir, file), b, 0))
		}
	}
}

// makeSlice is makeShare for cgroup v2: it creates slices whose scopes have all controllers.
func (a *agent) makeSlice() {
	all := "+cpuset +cpu +memory +pids"
	given, err := os.ReadFile(filepath.Join(a.cgroup.Root, "cgroup.subtree_control"))
	must.NoError(a.t, err)
	for _, controller := range strings.Fields(all) {
		if !slices.Contains(strings.Fields(string(given)), controller[1:]) {
			return // tasks get no cgroup: a test must not change the controllers of the root
		}
	}
	if slices.Contains(strings.Fields(string(given)), "io") {
		all += " +io"
	}
	a.share = filepath.Join(a.cgroup.Root, "nomad-outrider-test-"+uuid.Short()+".slice", "share.slice")
	for _, dir := range []string{filepath.Dir(a.share), a.share} {
		a.mkdir(dir)
		must.NoError(a.t, os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(all), 0))
	}
}

func (a *agent) mkdir(dir string) {
	if err := os.Mkdir(dir, 0o755); err == nil {
		a.made = append(a.made, dir)
	} else if !os.IsExist(err) {
		a.t.Fatal(err)
	}
}

// task returns a task as Nomad passes it to a driver: with an allocation directory, its cgroups,
// and its config block from HCL.
func (a *agent) task(config string, change ...func(*drivers.TaskConfig)) *drivers.TaskConfig {
	a.t.Helper()
	alloc := uuid.Generate()
	cfg := &drivers.TaskConfig{
		ID: alloc + "/web/" + uuid.Short(), AllocID: alloc, Name: "web", NodeID: a.node, JobName: "job",
		Env: map[string]string{"PATH": os.Getenv("PATH"), "NOMAD_ALLOC_ID": alloc, "NOMAD_TASK_NAME": "web"},
		Resources: &drivers.Resources{
			NomadResources: &structs.AllocatedTaskResources{
				Memory: structs.AllocatedMemoryResources{MemoryMB: 128}, Cpu: structs.AllocatedCpuResources{CpuShares: 100},
			},
			LinuxResources: &drivers.LinuxResources{CPUShares: 100, MemoryLimitBytes: 128 << 20, PercentTicks: 0.1},
		},
	}
	for _, f := range change {
		f(cfg)
	}
	spec, err := a.TaskConfigSchema()
	must.NoError(a.t, err)
	var decoded map[string]any
	hclutils.NewConfigParser(spec).ParseHCL(a.t, "config {\n"+config+"\n}", &decoded)
	must.NoError(a.t, cfg.EncodeConcreteDriverConfig(decoded))
	if a.share != "" && a.cgroup.Mode == cgroup.V2 {
		scope := filepath.Join(a.share, cfg.AllocID+"."+cfg.Name+".scope")
		a.mkdir(scope)
		cfg.Resources.LinuxResources.CpusetCgroupPath = scope
	} else if a.share != "" {
		cfg.Resources.LinuxResources.CpusetCgroupPath = a.share
		g := cgroup.Plan(a.cgroup, a.share, cfg.AllocID, cfg.Name)
		for _, controller := range []string{"freezer", "memory", "cpu"} {
			a.mkdir(filepath.Dir(g.V1[controller]))
			a.mkdir(g.V1[controller])
		}
	}
	if cfg.AllocDir == "" {
		a.t.Cleanup(a.MkAllocDir(cfg, cfg.StdoutPath == "logmon"))
		if cfg.StdoutPath == "" {
			cfg.StdoutPath = filepath.Join(cfg.AllocDir, "alloc/logs/.web.stdout.fifo")
			cfg.StderrPath = filepath.Join(cfg.AllocDir, "alloc/logs/.web.stderr.fifo")
		}
		for dir := cfg.AllocDir; strings.Contains(dir, "nomad_driver_harness"); dir = filepath.Dir(dir) {
			must.NoError(a.t, os.Chmod(dir, 0o755))
		}
	}
	return cfg
}

// background returns a line of a script that starts a sleep in the background. The sleep must end with the task. If
// tasks have a cgroup, it must end even in its own session.
func (a *agent) background(mark string) string {
	if a.share == "" {
		return "sleep " + mark + " & "
	}
	return "setsid -f sleep " + mark + "; "
}

// shell returns a task that runs a script of sh. The lines in more are added to its config block.
func (a *agent) shell(script, more string, change ...func(*drivers.TaskConfig)) *drivers.TaskConfig {
	a.t.Helper()
	return a.task(fmt.Sprintf("command = \"/bin/sh\"\nargs = [\"-c\", %q]\n%s", script, more), change...)
}

func (a *agent) run(cfg *drivers.TaskConfig) *drivers.TaskHandle {
	a.t.Helper()
	th, _, err := a.StartTask(cfg)
	must.NoError(a.t, err)
	return th
}

func (a *agent) wait(id string) *drivers.ExitResult {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ch, err := a.WaitTask(ctx, id)
	must.NoError(a.t, err)
	r, ok := <-ch
	if !ok || r == nil {
		a.t.Fatal("WaitTask delivered no result")
	}
	return r
}

// pid returns the pid of a task's main process.
func (a *agent) pid(id string) int {
	a.t.Helper()
	st, err := a.InspectTask(id)
	must.NoError(a.t, err)
	pid, err := strconv.Atoi(st.DriverAttributes["pid"])
	must.NoError(a.t, err)
	return pid
}

// stopped reports whether a signal has stopped a task's main process.
func (a *agent) stopped(id string) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", a.pid(id)))
	return strings.Contains(string(b), ") T ")
}

func (a *agent) destroy(id string) {
	a.t.Helper()
	if err := a.DestroyTask(id, true); err != nil {
		a.t.Errorf("destroy: %v", err)
	}
}

// result runs a task to its end, and returns its output and how it ended.
func (a *agent) result(cfg *drivers.TaskConfig) (string, *drivers.ExitResult) {
	a.t.Helper()
	a.run(cfg)
	r := a.wait(cfg.ID)
	a.destroy(cfg.ID)
	return a.output(cfg), r
}

func (a *agent) output(cfg *drivers.TaskConfig) string {
	b, _ := os.ReadFile(filepath.Join(cfg.AllocDir, "alloc/logs/web.stdout.0"))
	return string(b)
}

func (a *agent) nothingLeft() {
	t := a.t
	t.Helper()
	stores, _ := filepath.Glob(filepath.Join(a.state, "*", "*"))
	for _, dir := range stores {
		tasks, _ := os.ReadDir(filepath.Join(dir, "tasks"))
		if len(tasks) > 0 && !t.Failed() {
			t.Errorf("state of %d tasks is left", len(tasks))
		}
		for _, pid := range supervisors(dir) { // idle now; each would exit by itself after some seconds
			all := descendants(pid)
			unix.Kill(pid, unix.SIGKILL)
			left := slices.DeleteFunc(slices.Clone(all), func(pid int) bool {
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				// a process that is exiting has no arguments
				return len(line) == 0 || strings.HasPrefix(string(line), "outrider-supervisor\x00collect\x00")
			})
			test.SliceEmpty(t, left, test.Sprintf("%d processes of tasks are left", len(left)))
			for _, pid := range all { // after a failed test, processes left behind would slow down the next tests
				unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
	if a.share == "" {
		return
	}
	parent := filepath.Base(filepath.Dir(a.share))
	for _, dir := range []string{filepath.Join(a.cgroup.Unified, parent),
		filepath.Join(a.cgroup.Root, "systemd", parent)} {
		if _, err := os.Stat(dir); err == nil && a.cgroup.Unified != "" {
			t.Errorf("cgroup %s is left", dir)
		}
	}
	end := time.Now().Add(30 * time.Second)
	for _, dir := range slices.Backward(a.made) {
		err := unix.Rmdir(dir)
		for ; err == unix.EBUSY && time.Now().Before(end); err = unix.Rmdir(dir) {
			time.Sleep(5 * time.Millisecond)
		}
		test.NoError(t, err, test.Sprintf("cgroup %s can't be removed", dir))
	}
}

func supervisors(store string) (pids []int) {
	return testsupport.Processes(func(args []string) bool {
		return len(args) == 3 && args[0] == "outrider-supervisor" && args[1] == "supervise" && args[2] == store
	})
}

func descendants(pid int) (pids []int) {
	table, _ := task.Processes()
	for _, st := range task.Descendants(table, pid) {
		if !st.Zombie {
			pids = append(pids, st.PID)
		}
	}
	return pids
}

// wire returns a task handle as an agent reads it back from its disk.
func wire(t *testing.T, th *drivers.TaskHandle) *drivers.TaskHandle {
	t.Helper()
	b, err := json.Marshal(th)
	must.NoError(t, err)
	var back drivers.TaskHandle
	must.NoError(t, json.Unmarshal(b, &back))
	return &back
}

// binaryVar is set if the test binary runs as the plugin.
const binaryVar = "OUTRIDER_TEST_BINARY"

// nonRootVar is set if the test binary runs the non-root part of a test.
const nonRootVar = "OUTRIDER_TEST_NONROOT"

// withoutRoot runs the test again as an unprivileged user in these groups, and fails if that run
// fails. It returns true in that run, which must do the actual test.
func withoutRoot(t *testing.T, groups ...string) bool {
	t.Helper()
	if os.Getenv(nonRootVar) != "" {
		return true
	}
	testsupport.NeedRoot(t)           // to become another user
	dir, err := os.MkdirTemp("", "n") // short, for a socket
	must.NoError(t, err)
	defer os.RemoveAll(dir)
	must.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
	b, err := os.ReadFile("/proc/self/exe")
	must.NoError(t, err)
	binary := filepath.Join(dir, "driver.test")
	must.NoError(t, os.WriteFile(binary, b, 0o755))
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip("needs setpriv(1)")
	}
	in := "--clear-groups"
	if len(groups) > 0 {
		in = "--groups=" + strings.Join(groups, ",")
	}
	cmd := exec.Command(setpriv, "--reuid=65534", "--regid=65534", in, binary,
		"-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{nonRootVar + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprintf("as user 65534: %v\n%s", err, out))
	test.StrContains(t, string(out), "--- PASS", test.Sprintf("as user 65534: %v\n%s", err, out))
	return false
}

var nullLogger = hclog.NewNullLogger()
