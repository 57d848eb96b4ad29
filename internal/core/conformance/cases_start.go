// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	goversion "github.com/hashicorp/go-version"
	"github.com/hashicorp/nomad/helper/uuid"
	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// pluginCases cover the plugin without a task.
var pluginCases = []driverCase{
	{"the plugin reports its name, version and API", func(c *check) {
		info, err := c.PluginInfo()
		c.ok(err, "PluginInfo")
		_, bad := goversion.NewVersion(info.PluginVersion)
		speaks := slices.Contains(info.PluginApiVersions, drivers.ApiVersion010)
		if info.Type != base.PluginTypeDriver || info.Name == "" || bad != nil || !speaks {
			c.fail("got %+v", info)
		}
		c.note("%s %s", info.Name, info.PluginVersion)
	}},
	{"an agent that only inspects the plugin changes nothing", func(c *check) {
		r := c.running(sleeping)
		before := len(c.processes())
		_, err := c.look()
		c.ok(err, "inspecting the plugin")
		r.wantRunning("an inspection")
		c.until("the inspected processes end", func() bool { return len(c.processes()) <= before })
	}},
	{"the fingerprint arrives immediately, is healthy, and stays open", func(c *check) {
		ch, err := c.Fingerprint(c.ctx)
		c.ok(err, "Fingerprint")
		f := receive(c, ch, "a fingerprint")
		if f.Err != nil || f.Health != drivers.HealthStateHealthy {
			c.fail("the driver is %s: %q, %v", f.Health, f.HealthDescription, f.Err)
		}
		wantOpen(c, ch)
	}},
	{"attributes are under driver.<name>", func(c *check) {
		ch, err := c.Fingerprint(c.ctx)
		c.ok(err, "Fingerprint")
		f := receive(c, ch, "a fingerprint")
		own := "driver." + c.info.Name
		if f.Attributes[own] == nil {
			c.fail("attribute %s is missing: jobs use it to find nodes that have the driver", own)
		}
		for name := range f.Attributes {
			if name != own && !strings.HasPrefix(name, own+".") {
				c.fail("attribute %s is not under %s", name, own)
			}
		}
	}},
	{"the stream of events stays open", func(c *check) {
		ch, err := c.TaskEvents(c.ctx)
		c.ok(err, "TaskEvents")
		wantOpen(c, ch)
	}},
}

// wantOpen ends the case if a stream is closed within a second. An agent would reopen it in a busy loop.
func wantOpen[T any](c *check, ch <-chan T) {
	for end := time.After(time.Second); ; {
		select {
		case _, open := <-ch:
			if !open {
				c.fail("the stream was closed, and an agent would reopen it in a busy loop")
			}
		case <-end:
			return
		}
	}
}

// startCases cover the environment and resources of a started task.
var startCases = []driverCase{
	{"a task has its environment, unchanged", func(c *check) {
		env := map[string]string{"EMPTY": "", "SPACES": " a  b ", "QUOTES": `"'$(x)\`, "LINES": "one\ntwo", "EQUALS": "a=b=c"}
		r := c.newRun(`[ "${EMPTY-unset}" = "" ] || echo "EMPTY is unset" >> wrong
			for v in SPACES QUOTES LINES EQUALS; do eval "printf %s \"\$$v\"" > $v; done; echo > ready`,
			func(cfg *drivers.TaskConfig) {
				for k, v := range env {
					cfg.Env[k] = v
				}
			})
		r.start()
		r.wantExit(0, 0)
		for _, name := range []string{"SPACES", "QUOTES", "LINES", "EQUALS"} {
			if b, _ := os.ReadFile(r.path(name)); string(b) != env[name] {
				c.fail("%s is %q, want %q", name, b, env[name])
			}
		}
		if testsupport.Exists(r.path("wrong")) {
			c.fail("%s", r.read("wrong"))
		}
	}},
	{"the output of both streams arrives, complete and separate", func(c *check) {
		r := c.startTask(`head -c 1000000 /dev/zero | tr '\0' o; echo end; echo err >&2`)
		r.wantExit(0, 0)
		c.until("1000004 bytes of stdout arrive", func() bool { return len(r.output("stdout")) == 1000004 })
		c.until("stderr arrives", func() bool { return r.output("stderr") == "err\n" })
	}},
	{"logmon sees the end of its pipes when the task ends", func(c *check) {
		c.needLogmon()
		r := c.startTask("echo out")
		r.wantExit(0, 0)
		began := time.Now()
		c.ok(r.logmon.Stop(), "stopping logmon") // takes 2 s if the driver has not opened and closed the pipe
		if took := time.Since(began); took >= 2*time.Second {
			c.fail("logmon waited %s for the end of the output", took)
		}
	}},
	{"a dead logmon does not delay the start", func(c *check) {
		c.needLogmon()
		r := c.newRun("exit 0", func(cfg *drivers.TaskConfig) { cfg.StdoutPath = "later" })
		r.cfg.StdoutPath, r.cfg.StderrPath = filepath.Join(r.cfg.AllocDir, "o"), filepath.Join(r.cfg.AllocDir, "e")
		for _, path := range []string{r.cfg.StdoutPath, r.cfg.StderrPath} {
			c.ok(unix.Mkfifo(path, 0o600), "making the log pipes")
		}
		if _, _, err := c.StartTask(r.cfg); err == nil {
			r.wantExit(0, 0)
		}
	}},
	{"a task without logs runs", func(c *check) {
		r := c.startTask("echo lost; exit 3", func(cfg *drivers.TaskConfig) {
			cfg.StdoutPath, cfg.StderrPath = os.DevNull, os.DevNull
		})
		r.wantExit(3, 0)
	}},
	{"a task runs as the job's user, with that user's variables", func(c *check) {
		c.needRoot()
		r := c.newRun(`echo "$(id -u) $USER $LOGNAME" > who`, func(cfg *drivers.TaskConfig) { cfg.User = "nobody" })
		r.start()
		r.wantExit(0, 0)
		if who := r.read("who"); who != "65534 nobody nobody" {
			c.fail("id, USER and LOGNAME are %q", who)
		}
	}},
	{"an unknown user is an error that names the user", func(c *check) {
		r := c.newRun("exec sleep 1000", func(cfg *drivers.TaskConfig) { cfg.User = "no-such-user-9" })
		_, _, err := c.StartTask(r.cfg)
		if err == nil {
			c.fail("the task was started")
		}
		if !strings.Contains(err.Error(), r.cfg.User) {
			c.fail("got %q", err)
		}
		r.wantNone("a start that failed")
		if _, err := c.InspectTask(r.cfg.ID); err == nil {
			c.fail("the driver knows the task, though its start failed")
		}
	}},
	{"a second start with the same id is an error", func(c *check) {
		r := c.running("echo run >> runs; echo > ready; exec sleep 1000")
		if _, _, err := c.StartTask(r.cfg); err == nil {
			c.fail("the task was started again")
		}
		r.wantRunning("a second start")
		if runs := r.read("runs"); runs != "run" {
			c.fail("the task was started again: %q", runs)
		}
	}},
	{"concurrent tasks have their own exits", func(c *check) {
		var runs []*run
		for i := range 8 {
			runs = append(runs, c.startTask(fmt.Sprintf("sleep 0.%d; exit %d", i, i+10)))
		}
		for i, r := range runs {
			r.wantExit(i+10, 0)
		}
	}},
	{"a task is in the cgroup that Nomad made for it", func(c *check) {
		if c.cgroups.missing != "" {
			c.skip(c.cgroups.missing)
		}
		r := c.running(sleeping)
		r.wantRunning("its start")
		for _, pid := range r.pids() {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
			if !strings.Contains(string(b), r.cfg.AllocID+"."+r.cfg.Name) {
				c.fail("a process is outside the cgroup, so an agent can't end it with the allocation")
			}
		}
	}},
	{"a task that exceeds its memory is reported as OOM-killed", func(c *check) {
		if c.cgroups.missing != "" || !slices.Contains(c.cgroups.support.Controllers, "memory") {
			c.skip("no memory limit can be set here: " + c.cgroups.support.Missing)
		}
		r := c.startTask("mkfifo pipe; head -c 300000000 /dev/zero > pipe & exec tail -c 300000000 pipe > out",
			func(cfg *drivers.TaskConfig) {
				cfg.Resources.NomadResources.Memory.MemoryMB = 32
				cfg.Resources.LinuxResources.MemoryLimitBytes = 32 << 20
			})
		if got := r.wait(); !got.OOMKilled {
			c.fail("the exit is %s", exit(got))
		}
	}},
	{"a task has its volumes", func(c *check) {
		if c.caps.MountConfigs == drivers.MountConfigSupportNone {
			c.notApplicable("the driver declares no support for volumes")
		}
		c.needRoot()
		source := filepath.Join(c.dir, "volume")
		c.ok(os.Mkdir(source, 0o755), "making the volume")
		c.ok(os.WriteFile(filepath.Join(source, "file"), []byte("of the volume\n"), 0o644), "making the volume")
		c.ok(os.Chmod(source, 0o777), "making the volume") // so that the task can write to it as any user
		const private = structs.VolumeMountPropagationPrivate
		r := c.newRun("cat /conformance-volume/file > got; echo > /conformance-volume/new; echo > /conformance-ro/newer",
			func(cfg *drivers.TaskConfig) {
				cfg.Mounts = []*drivers.MountConfig{
					{HostPath: source, TaskPath: "/conformance-volume", PropagationMode: private},
					{HostPath: source, TaskPath: "/conformance-ro", PropagationMode: private, Readonly: true},
				}
			})
		if _, _, err := c.StartTask(r.cfg); err == nil {
			r.wait()
		}
		if got := r.read("got"); got != "of the volume" {
			c.fail("the driver declares support for volumes, but the task has none")
		}
		if _, err := os.Stat(filepath.Join(source, "new")); err != nil {
			c.fail("a file that the task wrote to the volume is missing: %v", err)
		}
		if _, err := os.Stat(filepath.Join(source, "newer")); err == nil {
			c.fail("the task has written to a read-only volume")
		}
	}},
	{"a task has its devices", func(c *check) {
		c.needRoot()
		name := "conformance-" + uuid.Short()
		r := c.newRun("[ -c /dev/"+name+" ] && echo found > got", func(cfg *drivers.TaskConfig) {
			cfg.Devices = []*drivers.DeviceConfig{{HostPath: "/dev/zero", TaskPath: "/dev/" + name, Permissions: "r"}}
		})
		_, _, err := c.StartTask(r.cfg)
		if err != nil && strings.Contains(err.Error(), "device") {
			c.notApplicable("the driver refuses devices: " + err.Error())
		}
		if err == nil {
			r.wait()
		}
		if r.read("got") != "found" {
			c.fail("the task has no device node: the device of its job is ignored")
		}
	}},
	{"InspectTask returns state, times and exit", func(c *check) {
		r := c.running("echo > ready; while [ ! -e go ]; do sleep 0.05; done; exit 4")
		st, err := c.InspectTask(r.cfg.ID)
		c.ok(err, "InspectTask")
		if st.ID != r.cfg.ID || st.State != drivers.TaskStateRunning || time.Since(st.StartedAt) > time.Hour {
			c.fail("the status of a running task is %+v", st)
		}
		r.end()
		r.wantExit(4, 0)
		st, err = c.InspectTask(r.cfg.ID)
		c.ok(err, "InspectTask after the exit")
		if st.State != drivers.TaskStateExited || st.ExitResult == nil || st.CompletedAt.Before(st.StartedAt) {
			c.fail("the status of a task that has ended is %+v, %+v", st, st.ExitResult)
		}
		c.wantExit(st.ExitResult, 4, 0)
	}},
}

// needLogmon ends the case if the driver collects output itself, without Nomad's logmon.
func (c *check) needLogmon() {
	if c.caps.DisableLogCollection {
		c.notApplicable("the driver collects output itself")
	}
}
