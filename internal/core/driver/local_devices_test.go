// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/reservation"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// stick makes a device node as a device plugin does, and returns its path. The node's group is 4242.
func stick(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev", "outrider-test-") // a file system that permits device nodes
	must.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must.NoError(t, os.Chmod(dir, 0o755))
	path := filepath.Join(dir, "tty")
	must.NoError(t, unix.Mknod(path, unix.S_IFCHR|0o660, int(unix.Mkdev(1, 5))))
	must.NoError(t, os.Chmod(path, 0o660))
	must.NoError(t, os.Chown(path, 0, 4242))
	return path
}

// mountsUnchanged fails the test if a mount at one of these paths remains at the end.
func mountsUnchanged(t *testing.T, of ...string) {
	t.Cleanup(func() {
		b, err := os.ReadFile("/proc/self/mountinfo")
		must.NoError(t, err)
		for _, path := range of {
			test.StrNotContains(t, string(b), path, test.Sprintf("mounts of %s are left:\n%s", path, b))
		}
	})
}

func reserve(devices []*drivers.DeviceConfig, mounts []*drivers.MountConfig) func(*drivers.TaskConfig) {
	return func(c *drivers.TaskConfig) { c.Devices, c.Mounts = devices, mounts }
}

// printsEverywhere checks that a script prints want in three places: in a task, and as a command in that task before
// and after a restart of the plugin.
func (a *agent) printsEverywhere(cfg *drivers.TaskConfig, script, want string) {
	a.t.Helper()
	th := a.run(cfg)
	testsupport.Eventually(a.t, "the task has run the script", func() bool { return len(a.output(cfg)) >= len(want) })
	test.Eq(a.t, want, a.output(cfg), test.Sprint("the task"))
	for _, restarted := range []bool{false, true} {
		if restarted {
			a.restart()
			must.NoError(a.t, a.RecoverTask(wire(a.t, th)))
		}
		r, err := a.ExecTask(cfg.ID, []string{"/bin/sh", "-c", script}, time.Minute)
		must.NoError(a.t, err)
		test.Eq(a.t, want, string(r.Stdout), test.Sprintf("a command in it, plugin restarted: %v", restarted))
	}
}

func TestDevices_AreInTheTask(t *testing.T) {
	testsupport.NeedRoot(t)
	host, dir := stick(t), t.TempDir()
	mountsUnchanged(t, dir, "zigbee")
	must.NoError(t, os.WriteFile(dir+"/file", []byte("mounted"), 0o644))
	a := start(t, nil)
	devices := []*drivers.DeviceConfig{
		{HostPath: host, TaskPath: "/dev/zigbee/tty", Permissions: "rw"},
		{HostPath: host, TaskPath: "/dev/serial/by-id/usb-stick-if00", Permissions: "rw"},
		{HostPath: "/dev/null", TaskPath: "/dev/null", Permissions: "rw"},
	}
	mounts := []*drivers.MountConfig{{HostPath: dir, TaskPath: "/dev/bus/usb", Readonly: true}}
	const script = `pwd; stat -L -c %t:%T /dev/zigbee/tty /dev/serial/by-id/usb-stick-if00; cat /dev/bus/usb/file; touch /dev/bus/usb/new 2>&1 | grep -c Read-only; echo x > /dev/zigbee/tty && echo written`
	cfg := a.shell(script+"; exec sleep 1000", "", reserve(devices, mounts),
		func(c *drivers.TaskConfig) { c.User = "nobody:4242" })
	want := cfg.TaskDir().Dir + "\n1:5\n1:5\nmounted1\nwritten\n"
	a.printsEverywhere(cfg, script, want)
	_, err := os.Lstat("/dev/zigbee")
	test.Error(t, err, test.Sprint("the host has it too"))
	must.NoError(t, a.StopTask(cfg.ID, 0, ""))
	a.destroy(cfg.ID)
}

func TestMounts_AreReadOnlyInEveryProcess(t *testing.T) {
	testsupport.NeedRoot(t)
	dir := t.TempDir()
	mountsUnchanged(t, dir)
	w := testInstance{}
	w.command = func(_ context.Context, r testRequest) (*task.Command, error) {
		cmd := r.Run(r.Config.Command, r.Config.Args...)
		cmd.Mounts = append(cmd.Mounts, task.Mount{Source: dir, Target: dir, ReadOnly: true})
		return cmd, nil
	}
	a := startInstance(t, w, nil)
	script := "touch " + dir + "/new 2>&1"
	want := "touch: cannot touch '" + dir + "/new': Read-only file system\n"
	cfg := a.shell(script+"; exec sleep 1000", "")
	a.printsEverywhere(cfg, script, want)
	must.NoError(t, os.WriteFile(dir+"/new", nil, 0o644))
	must.NoError(t, a.StopTask(cfg.ID, 0, ""))
	a.destroy(cfg.ID)
}

func TestDevices_AreRestoredAfterAnAgentRestart(t *testing.T) {
	testsupport.NeedRoot(t)
	host, dir := stick(t), t.TempDir()
	must.NoError(t, os.WriteFile(dir+"/file", []byte("mounted\n"), 0o644))
	a := start(t, nil)
	one := &device.ContainerReservation{
		Devices: []*device.DeviceSpec{{HostPath: host, TaskPath: "/dev/zigbee/tty", CgroupPerms: "rw"}},
		Mounts:  []*device.Mount{{HostPath: dir, TaskPath: "/dev/bus/usb", ReadOnly: true}},
	}
	two := &device.ContainerReservation{
		Devices: []*device.DeviceSpec{{HostPath: "/dev/zero", TaskPath: "/dev/zwave/tty", CgroupPerms: "rw"}},
		Mounts:  []*device.Mount{{HostPath: dir, TaskPath: "/dev/bus/usb", ReadOnly: true}},
	}
	env := map[string]string{}
	for _, r := range []*device.ContainerReservation{one, two} {
		must.NoError(t, reservation.Remember(r))
		for name, value := range r.Envs {
			env[name] = value
		}
	}
	said := reserve([]*drivers.DeviceConfig{{HostPath: host, TaskPath: "/dev/zigbee/tty", Permissions: "rw"}},
		[]*drivers.MountConfig{{HostPath: dir, TaskPath: "/dev/bus/usb", Readonly: true}})
	const script = `readlink /dev/zigbee/tty /dev/zwave/tty; cat /dev/bus/usb/file; grep -c " /dev/bus/usb " /proc/self/mountinfo`
	for name, c := range map[string]struct {
		change func(*drivers.TaskConfig)
		want   string
	}{
		"all forgotten":  {func(c *drivers.TaskConfig) { c.DeviceEnv = env }, host + "\n/dev/zero\nmounted\n1\n"},
		"some forgotten": {func(c *drivers.TaskConfig) { c.DeviceEnv = env; said(c) }, host + "\n/dev/zero\nmounted\n1\n"},
		// the job's author chooses Env, and must not get devices in this way
		"made up by the job": {func(c *drivers.TaskConfig) {
			for name, value := range env {
				c.Env[name] = value
			}
		}, "0\n"},
	} {
		out, _ := a.result(a.shell(script, "", c.change))
		test.Eq(t, c.want, out, test.Sprint(name))
	}
	cfg := a.shell("exit 0", "", func(c *drivers.TaskConfig) {
		c.DeviceEnv = map[string]string{reservation.Prefix +
			"00000000": "{"}
	})
	_, _, err := a.StartTask(cfg)
	test.ErrorContains(t, err, reservation.Prefix+"00000000 is not a valid reservation",
		test.Sprint("one that can't be read"))
}

func TestDevices_WithTheSamePathAreRefused(t *testing.T) {
	a := start(t, nil)
	cfg := a.shell("exit 0", "", reserve([]*drivers.DeviceConfig{
		{HostPath: "/dev/null", TaskPath: "/dev/zigbee/tty"}, {HostPath: "/dev/zero", TaskPath: "/dev/zigbee/tty"},
	}, nil))
	if _, _, err := a.StartTask(cfg); err == nil ||
		!strings.Contains(err.Error(), `devices "/dev/null" and "/dev/zero" have the same path "/dev/zigbee/tty" in the task`) || structs.IsRecoverable(err) {
		t.Errorf("got %v", err)
	}
}

func TestDevices_ErrorForAMissingDeviceIsRecoverable(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	for _, path := range []string{"/dev/none", "/dev/elsewhere"} {
		cfg := a.shell("exit 0", "", reserve([]*drivers.DeviceConfig{{HostPath: "/dev/none", TaskPath: path}}, nil))
		_, _, err := a.StartTask(cfg)
		if err == nil || !strings.Contains(err.Error(), `device "/dev/none" not found: is the device plugged in?`) ||
			!structs.IsRecoverable(err) {
			t.Errorf("at %s: got %v", path, err)
		}
		_, err = a.InspectTask(cfg.ID)
		test.Error(t, err, test.Sprint("the task is known"))
	}
	cfg := a.shell("exit 0", "", reserve([]*drivers.DeviceConfig{{HostPath: "/dev/null", TaskPath: "/dev/../etc/passwd"}},
		nil))
	if _, _, err := a.StartTask(cfg); err == nil || structs.IsRecoverable(err) ||
		!strings.Contains(err.Error(), `has ".." in it`) {
		t.Errorf("not fixed by plugging in: %v", err)
	}
}

func TestNonRootAgent_TasksHaveDevicesAtTheirHostPaths(t *testing.T) {
	if !withoutRoot(t) {
		return
	}
	a := start(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events, err := a.TaskEvents(ctx)
	must.NoError(t, err)
	cfg := a.task("command = \"/bin/sh\"\nargs = [\"-c\", \"echo $0 $USB_ZIGBEE_TTY $USB_BUS $OTHER; head -c 2 $0; "+
		"exec sleep 1000\", \"/dev/zigbee/tty\"]",
		reserve([]*drivers.DeviceConfig{{HostPath: "/dev/zero", TaskPath: "/dev/zigbee/tty"},
			{HostPath: "/dev/null", TaskPath: "/dev/null"}},
			[]*drivers.MountConfig{{HostPath: "/dev/nomad-usb/1/bus", TaskPath: "/dev/bus/usb"}}),
		func(c *drivers.TaskConfig) {
			c.Env["USB_ZIGBEE_TTY"], c.Env["USB_BUS"], c.Env["OTHER"] = "/dev/zigbee/tty", "/dev/bus/usb", "/dev/zigbee/tty0"
		})
	a.run(cfg)
	_, err = a.WaitTask(ctx, cfg.ID)
	must.NoError(t, err)
	want := "Devices are at their paths on the host: /dev/zigbee/tty is /dev/zero, /dev/bus/usb is /dev/nomad-usb/1/bus"
	for told := false; !told; {
		select {
		case e := <-events:
			told = e.Message == want
		case <-time.After(time.Minute):
			t.Fatal("no such event")
		}
	}
	testsupport.Eventually(t, "the task has read its device", func() bool {
		return strings.HasSuffix(a.output(cfg), "\x00\x00")
	})
	test.Eq(t, "/dev/zero /dev/zero /dev/nomad-usb/1/bus /dev/zigbee/tty0\n\x00\x00", a.output(cfg))
	must.NoError(t, a.StopTask(cfg.ID, 0, ""))
	a.destroy(cfg.ID)

	cfg = a.shell("exit 0", "", reserve([]*drivers.DeviceConfig{{HostPath: "/dev/none", TaskPath: "/dev/zigbee/tty"}},
		nil))
	if _, _, err := a.StartTask(cfg); err == nil || !structs.IsRecoverable(err) ||
		!strings.Contains(err.Error(), "is the device plugged in?") {
		t.Errorf("unplugged: %v", err)
	}
}

func TestNonRootAgent_UnveilsTheHostPathsOfMounts(t *testing.T) {
	file := task.UnveiledPath{Path: "/etc/passwd", Modes: "r"}
	cmd := &task.Command{
		Mounts: []task.Mount{{Source: "/srv/nodes", Target: "/dev/radio"}},
		Unveil: &task.Unveil{Paths: []task.UnveiledPath{file, {Path: "/dev/radio", Modes: "rw"}}},
	}
	useHostPaths(cmd)
	test.Eq(t, []task.UnveiledPath{file, {Path: "/srv/nodes", Modes: "rw"}}, cmd.Unveil.Paths)
}

func TestVolumes_AreInTheTask(t *testing.T) {
	testsupport.NeedRoot(t)
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(dir+"/file", []byte("volume\n"), 0o644))
	a := start(t, nil)
	caps, err := a.Capabilities()
	must.NoError(t, err)
	must.Eq(t, drivers.MountConfigSupportAll, caps.MountConfigs)
	slot := &device.ContainerReservation{Mounts: []*device.Mount{{HostPath: dir, TaskPath: "/outrider-slot"}}}
	must.NoError(t, reservation.Remember(slot))
	volume := func(target string) func(*drivers.TaskConfig) {
		return func(c *drivers.TaskConfig) {
			c.User = "nobody"
			c.Mounts = append(c.Mounts, &drivers.MountConfig{HostPath: dir, TaskPath: target, Readonly: true,
				PropagationMode: structs.VolumeMountPropagationPrivate})
		}
	}
	reserved := func(c *drivers.TaskConfig) { c.User, c.DeviceEnv = "nobody", slot.Envs }
	root := func(c *drivers.TaskConfig) { c.User = "root" }
	for name, c := range map[string]struct {
		path    string
		changes []func(*drivers.TaskConfig)
		locked  string // the task's NoNewPrivs in /proc/PID/status
	}{
		"at an absolute path":     {"/outrider-data", []func(*drivers.TaskConfig){volume("/outrider-data")}, "1"},
		"in a task of root":       {"/outrider-data", []func(*drivers.TaskConfig){volume("/outrider-data"), root}, "0"},
		"in the task's directory": {"local/data", []func(*drivers.TaskConfig){volume("local/data")}, "0"},
		"in both": {
			"local/data", []func(*drivers.TaskConfig){volume("local/data"), volume("//etc/ssl")}, "1",
		},
		"a slot":              {"/outrider-slot", []func(*drivers.TaskConfig){reserved}, "0"},
		"a slot and a volume": {"/outrider-slot", []func(*drivers.TaskConfig){reserved, volume("/outrider-data")}, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := a.shell("cat "+c.path+"/file; grep -o 'NoNewPrivs.*' /proc/self/status; exec sleep 1000", "", c.changes...)
			a.printsEverywhere(cfg, "cat "+c.path+"/file; grep -o 'NoNewPrivs.*' /proc/self/status",
				"volume\nNoNewPrivs:\t"+c.locked+"\n")
			must.NoError(t, a.StopTask(cfg.ID, 0, ""))
			a.destroy(cfg.ID)
		})
	}
	for target, want := range map[string]string{
		"../../etc": `has ".." in it`, "/proc/sys": "choose a path outside of /proc and /sys",
		"local/..": `has ".." in it`, ".": "this would hide the task's own directory",
	} {
		_, _, err := a.StartTask(a.shell("exit 0", "", volume(target)))
		test.ErrorContains(t, err, want, test.Sprint(target))
	}
	cfg := a.shell("exit 0", "", volume("/outrider-data"))
	cfg.Mounts[0].PropagationMode, cfg.Mounts[0].Readonly = structs.VolumeMountPropagationHostToTask, true
	_, _, err = a.StartTask(cfg)
	test.ErrorContains(t, err, `propagation_mode = "host-to-task" read_only = true } is not supported: `+
		`file systems that the host mounts in it later would be writable`)
	cfg = a.shell("exit 0", "", volume("/outrider-data"))
	cfg.Mounts[0].PropagationMode = structs.VolumeMountPropagationBidirectional
	_, _, err = a.StartTask(cfg)
	test.ErrorContains(t, err, `volume_mount { destination = "/outrider-data" propagation_mode = "bidirectional" } is `+
		`not supported: mounts that a task of this driver makes are not visible on the host; use "host-to-task", or remove`)
}
