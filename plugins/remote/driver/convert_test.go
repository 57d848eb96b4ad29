// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

func TestHostConfig_UsesHostPaths(t *testing.T) {
	t.Setenv("OF_THE_AGENT", "x")
	t.Setenv("CHANGED", "x")
	t.Setenv("NOMAD_REGION", "global") // must stay in the task's environment, because Nomad sets it for each task
	cfg := &drivers.TaskConfig{
		AllocID: "alloc-1", Name: "web", AllocDir: "/nomad/alloc/alloc-1",
		Env: map[string]string{
			"NOMAD_TASK_DIR": "/nomad/alloc/alloc-1/web/local", "CLASSPATH": "/a:/nomad/alloc/alloc-1/alloc/data:/b",
			"OF_THE_AGENT": "x", "NOMAD_REGION": "global", "CHANGED": "by the job", "NOMAD_PARENT_CGROUP": "nomad.slice",
		},
	}
	must.NoError(t, cfg.EncodeConcreteDriverConfig(map[string]any{
		"endpoint": "box", "command": "/nomad/alloc/alloc-1/web/local/run",
		"args":     []string{"-d", "/nomad/alloc/alloc-1/alloc"},
		"work_dir": "/nomad/alloc/alloc-1/web", "nice": 3, "kill_mode": "process", "umask": "0022",
		"on_drain": "release", "on_lost": "reattach", "orphan_timeout": "24h", "on_unplug": "ignore", "unplug_delay": "10s",
		"stdin": "null", "io_weight": 100,
		"ulimit": []map[string]string{{"nofile": "10"}},
	}))
	got, _, err := hostConfig(cfg, "/srv/or")
	must.NoError(t, err)
	must.Eq(t, map[string]string{
		"NOMAD_TASK_DIR": "/srv/or/allocs/alloc-1/web/local", "CLASSPATH": "/a:/srv/or/allocs/alloc-1/alloc/data:/b",
		"CHANGED": "by the job", "NOMAD_REGION": "global",
	}, got.Env)
	must.Eq(t, "/nomad/alloc/alloc-1", got.AllocDir)
	task, err := schema.Of[TaskConfig]().DecodeTask(got)
	must.NoError(t, err)
	must.Eq(t, "/srv/or/allocs/alloc-1/web/local/run", task.Command)
	must.Eq(t, []string{"-d", "/srv/or/allocs/alloc-1/alloc"}, task.Args)
	must.Eq(t, "/srv/or/allocs/alloc-1/web", task.WorkDir)
	must.Eq(t, 3, task.Nice)
	must.Eq(t, map[string]string{"nofile": "10"}, task.Ulimit)
	must.Eq(t, "x", os.Getenv("OF_THE_AGENT")) // neither the agent's environment nor cfg has changed
	must.Eq(t, 6, len(cfg.Env))
}

func TestHostConfig_RefusesDevicesAndVolumes(t *testing.T) {
	for name, cfg := range map[string]*drivers.TaskConfig{
		"a device": {Devices: []*drivers.DeviceConfig{{HostPath: "/dev/null"}}},
		"a volume": {Mounts: []*drivers.MountConfig{{HostPath: "/srv"}}},
	} {
		_, _, err := hostConfig(cfg, "/srv/or")
		must.ErrorContains(t, err, "devices and volumes of the Nomad node", must.Sprint(name))
	}
}
