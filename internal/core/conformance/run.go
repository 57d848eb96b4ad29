// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/ci"
	"github.com/hashicorp/nomad/client/allocdir"
	"github.com/hashicorp/nomad/client/logmon"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/fsisolation"

	"github.com/outrider-dev/outrider/internal/core/schema"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// run is one run of a task.
type run struct {
	c      *check
	cfg    *drivers.TaskConfig
	handle *drivers.TaskHandle
	logmon logmon.LogMon // nil if the driver collects the output
	marker string        // the environment variable that identifies the task's processes
}

// newRun creates a task as an agent passes it to a driver, with directories, cgroups and log pipes. The script runs in
// the task's local directory. The task is destroyed at the end of the case.
func (c *check) newRun(script string, change ...func(*drivers.TaskConfig)) *run {
	alloc := uuid.Generate()
	cfg := &drivers.TaskConfig{
		ID: alloc + "/web/" + uuid.Short(), AllocID: alloc, Name: "web", JobName: "job", JobID: "job",
		TaskGroupName: "group", Namespace: "default", NodeID: "11111111-2222-3333-4444-555555555555", NodeName: "node",
		Resources: &drivers.Resources{
			NomadResources: &structs.AllocatedTaskResources{
				Memory: structs.AllocatedMemoryResources{MemoryMB: 128}, Cpu: structs.AllocatedCpuResources{CpuShares: 100},
			},
			LinuxResources: &drivers.LinuxResources{CPUShares: 100, MemoryLimitBytes: 128 << 20, PercentTicks: 0.1},
		},
		Env: map[string]string{
			"PATH": os.Getenv("PATH"), "OUTRIDER_CONFORMANCE": uuid.Generate(),
			"NOMAD_ALLOC_ID": alloc, "NOMAD_TASK_NAME": "web",
		},
	}
	for _, f := range change {
		f(cfg)
	}
	r := &run{c: c, cfg: cfg, marker: "OUTRIDER_CONFORMANCE=" + cfg.Env["OUTRIDER_CONFORMANCE"]}
	block, err := substitute(c.task, "cd \"$NOMAD_TASK_DIR\" || exit 99\n"+script)
	c.ok(err, "the task's config block")
	value, errs := schema.Value(c.taskHCL, block)
	c.ok(errors.Join(errs...), "the task's config block")
	c.ok(cfg.EncodeDriverConfig(value), "the task's config block")
	r.makeDirs()
	remove := c.cgroups.add(cfg)
	c.cleanup(remove)
	if cfg.StdoutPath == "" {
		r.collect()
	}
	c.cleanup(func() {
		if c.instance.Exited() && c.start() != nil {
			return
		}
		_ = c.DestroyTask(cfg.ID, true)
		for _, pid := range r.pids() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return r
}

// substitute replaces SCRIPT with a script.
func substitute(block map[string]any, script string) (out map[string]any, err error) {
	text, err := json.Marshal(block)
	if err != nil {
		return nil, err
	}
	literal, err := json.Marshal(strings.NewReplacer("${", "$${", "%{", "%%{").Replace(script)) // escaped for HCL
	if err != nil {
		return nil, err
	}
	text = bytes.ReplaceAll(text, []byte("SCRIPT"), literal[1:len(literal)-1])
	return out, json.Unmarshal(text, &out)
}

func (r *run) makeDirs() {
	allocs, mounts := filepath.Join(r.c.dir, "alloc"), filepath.Join(r.c.dir, "mounts")
	dirs := allocdir.NewAllocDir(r.c.logger, allocs, mounts, r.cfg.AllocID)
	r.c.ok(dirs.Build(), "making the allocation directory")
	td := dirs.NewTaskDir(&structs.Task{Name: r.cfg.Name})
	r.c.ok(td.Build(r.c.caps.FSIsolation, ci.TinyChroot, r.cfg.User), "making the task directory")
	r.c.cleanup(func() { _ = dirs.Destroy() })
	r.cfg.AllocDir = dirs.AllocDir
	env := map[string]string{
		"NOMAD_ALLOC_DIR": td.SharedAllocDir, "NOMAD_TASK_DIR": td.LocalDir, "NOMAD_SECRETS_DIR": td.SecretsDir,
	}
	switch r.c.caps.FSIsolation {
	case fsisolation.Chroot, fsisolation.Image:
		env = map[string]string{
			"NOMAD_ALLOC_DIR": allocdir.SharedAllocContainerPath, "NOMAD_TASK_DIR": allocdir.TaskLocalContainerPath,
			"NOMAD_SECRETS_DIR": allocdir.TaskSecretsContainerPath,
		}
	case fsisolation.Unveil:
		env = map[string]string{
			"NOMAD_ALLOC_DIR": td.MountsAllocDir, "NOMAD_TASK_DIR": filepath.Join(td.MountsTaskDir, "local"),
			"NOMAD_SECRETS_DIR": td.MountsSecretsDir,
		}
	}
	maps.Copy(r.cfg.Env, env)
}

// collect prepares the collection of the task's output, as an agent does before each start: it starts Nomad's logmon,
// unless the driver collects output itself.
func (r *run) collect() {
	logs := filepath.Join(r.cfg.AllocDir, "alloc", "logs")
	r.cfg.StdoutPath, r.cfg.StderrPath = filepath.Join(logs, ".web.stdout.fifo"), filepath.Join(logs, ".web.stderr.fifo")
	if r.c.caps.DisableLogCollection {
		return
	}
	reader := logmon.NewLogMon(r.c.logger)
	r.c.ok(reader.Start(&logmon.LogConfig{
		LogDir: logs, StdoutLogFile: "web.stdout", StderrLogFile: "web.stderr",
		StdoutFifo: r.cfg.StdoutPath, StderrFifo: r.cfg.StderrPath, MaxFiles: 2, MaxFileSizeMB: 10,
	}), "starting logmon")
	r.logmon = reader
	r.c.cleanup(func() {
		for _, path := range []string{r.cfg.StdoutPath, r.cfg.StderrPath} {
			if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil { // otherwise Stop waits for a writer
				f.Close()
			}
		}
		_ = reader.Stop()
	})
}

// startTask creates a task and starts it.
func (c *check) startTask(script string, change ...func(*drivers.TaskConfig)) *run {
	r := c.newRun(script, change...)
	r.start()
	return r
}

// These scripts are for the method running. The script in waiting exits with code 7 when the method end is called.
const (
	sleeping = "echo > ready; exec sleep 1000"
	waiting  = "echo > ready; while [ ! -e go ]; do sleep 0.05; done; echo over; exit 7"
)

// running starts a task and waits until its script has created the file "ready".
func (c *check) running(script string) *run {
	r := c.startTask(script)
	r.ready()
	return r
}

func (r *run) ready() {
	r.c.until("the task creates its file ready", func() bool { return testsupport.Exists(r.path("ready")) })
}

func (r *run) end() { r.c.ok(os.WriteFile(r.path("go"), nil, 0o644), "ending the task") }

func (r *run) start() {
	handle, _, err := r.c.StartTask(r.cfg)
	r.c.ok(err, "StartTask")
	if handle == nil || handle.Config == nil || handle.Config.ID != r.cfg.ID {
		r.c.fail("StartTask returned a handle without the task's configuration")
	}
	r.handle = stored(r.c, handle)
}

// recover makes the driver recover the task, as an agent does after a restart.
func (r *run) recover() {
	r.c.ok(r.c.RecoverTask(r.handle), "RecoverTask (after an error, an agent starts the task again)")
}

// destroy destroys the task, and ends the case if the task still has processes.
func (r *run) destroy() {
	r.c.ok(r.c.DestroyTask(r.cfg.ID, true), "DestroyTask")
	r.wantNone("DestroyTask")
}

// stored returns a handle as an agent reads it back from disk.
func stored(c *check, handle *drivers.TaskHandle) *drivers.TaskHandle {
	b, err := json.Marshal(handle)
	c.ok(err, "storing the handle")
	var back drivers.TaskHandle
	c.ok(json.Unmarshal(b, &back), "storing the handle")
	return &back
}

func (r *run) read(file string) string {
	b, _ := os.ReadFile(r.path(file))
	return strings.TrimSpace(string(b))
}

func (r *run) path(file string) string {
	dir := r.cfg.AllocDir
	if r.c.driver.Files != nil {
		dir = r.c.driver.Files(dir)
	}
	return filepath.Join(dir, r.cfg.Name, "local", file)
}

// output returns the output of the task on a stream.
func (r *run) output(stream string) string {
	b, _ := os.ReadFile(filepath.Join(r.cfg.AllocDir, "alloc", "logs", "web."+stream+".0"))
	return string(b)
}

// pids returns the task's processes. A process that is executing another program may be missing, because its
// environment is being replaced.
func (r *run) pids() []int { return withEnviron(r.marker) }

// wantRunning ends the case if the task has no process.
func (r *run) wantRunning(after string) {
	if !eventually(500*time.Millisecond, func() bool { return len(r.pids()) > 0 }) {
		r.c.fail("after %s the task is gone", after)
	}
}

func (r *run) signalAll(sig syscall.Signal) {
	var pids []int
	r.c.until("the task has a process", func() bool {
		pids = r.pids()
		return len(pids) > 0
	})
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
}

// wantNone ends the case if processes of the task still exist after 2 s.
func (r *run) wantNone(after string) {
	none := func() bool {
		first := len(r.pids()) // one look can miss a process that is being forked
		return first == 0 && len(r.pids()) == 0
	}
	if !eventually(2*time.Second, none) {
		r.c.fail("processes of the task are left after %s: %s", after, commandLines(r.pids()))
	}
}

func commandLines(pids []int) string {
	var lines []string
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		lines = append(lines, fmt.Sprintf("%.40q", strings.ReplaceAll(strings.TrimRight(string(b), "\x00"), "\x00", " ")))
	}
	return strings.Join(lines, ", ")
}

// stop stops the task as an agent does: it calls WaitTask before StopTask.
func (r *run) stop(timeout time.Duration, sig string) *drivers.ExitResult {
	ch, err := r.c.WaitTask(r.c.ctx, r.cfg.ID)
	r.c.ok(err, "WaitTask")
	time.Sleep(50 * time.Millisecond) // c.WaitTask returns before the plugin gets the call
	r.c.ok(r.c.StopTask(r.cfg.ID, timeout, sig), "StopTask")
	r.wantNone("StopTask")
	return receive(r.c, ch, "exit")
}

// wait waits for the task's exit.
func (r *run) wait() *drivers.ExitResult {
	ch, err := r.c.WaitTask(r.c.ctx, r.cfg.ID)
	r.c.ok(err, "WaitTask")
	return receive(r.c, ch, "exit")
}

// wantExit waits for the task's exit, and ends the case if it differs from code and sig.
func (r *run) wantExit(code int, sig syscall.Signal) { r.c.wantExit(r.wait(), code, sig) }

func (c *check) wantExit(got *drivers.ExitResult, code int, sig syscall.Signal) {
	if got.Err != nil || got.Signal != int(sig) || (sig == 0 && got.ExitCode != code) {
		c.fail("the exit is %s, want %s", exit(got), exit(&drivers.ExitResult{ExitCode: code, Signal: int(sig)}))
	}
}

func exit(r *drivers.ExitResult) string {
	text := fmt.Sprintf("code %d, signal %d", r.ExitCode, r.Signal)
	if r.OOMKilled {
		text += ", OOM"
	}
	if r.Err != nil {
		text += fmt.Sprintf(", error %q", r.Err)
	}
	return text
}
