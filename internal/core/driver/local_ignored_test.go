// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"maps"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestIgnored_ListsFieldsWithoutEffect(t *testing.T) {
	t.Setenv("AGENTS_OWN", "x")
	all := cgroup.Group{Mode: cgroup.V2, Controllers: []string{"cpu", "cpuset", "memory", "pids"}}
	limits := cgroup.Limits{MemoryMax: 1 << 20, CPUShares: 100, Cpuset: "0"}
	deny, err := newDenied(PluginOptions{DeniedEnvvars: []string{"NOMAD_*", "SECRET*", "AGENTS_OWN"}})
	must.NoError(t, err)
	for name, row := range map[string]struct {
		cfg    drivers.TaskConfig
		group  cgroup.Group
		limits cgroup.Limits
		want   []string
	}{
		"nothing":     {group: all, limits: limits},
		"no cgroup":   {group: cgroup.Group{Mode: cgroup.None}, limits: limits}, // another event covers all fields
		"agent's own": {cfg: drivers.TaskConfig{Env: map[string]string{"AGENTS_OWN": "x", "HOME": "/"}}, group: all},
		"empty network": {cfg: drivers.TaskConfig{DNS: &drivers.DNSConfig{},
			NetworkIsolation: &drivers.NetworkIsolationSpec{}}, group: all},
		"label": {
			cfg:   drivers.TaskConfig{Mounts: []*drivers.MountConfig{{TaskPath: "/a"}, {TaskPath: "/b", SELinuxLabel: "z"}}},
			group: all,
			want: []string{`volume_mount { destination = "/b" selinux_label = "z" } has no effect: ` +
				`label the volume's files on the host`},
		},
		"no controllers": {
			group: cgroup.Group{Mode: cgroup.V2, Controllers: []string{"cpu", "pids"}}, limits: limits,
			want: []string{`resources { memory, cores } has no effect: this node's cgroups have no controller for it; ` +
				`enable it in the kernel, or constrain the job to other nodes`},
		},
		"no limits": {group: cgroup.Group{Mode: cgroup.V1, V1: map[string]string{"freezer": "/x"}},
			limits: cgroup.Limits{MemoryMax: -1}},
		"env": {
			cfg: drivers.TaskConfig{Env: map[string]string{"NOMAD_SECRET_DIR": "/x", "SECRET_B": "", "SECRET_A": "1",
				"HOME": "/", "AGENTS_OWN": "y"}},
			group: all,
			want:  []string{`env { AGENTS_OWN, SECRET_A, SECRET_B } has no effect: the operator denies it to tasks of this node (denied_envvars)`},
		},
	} {
		test.SliceEqOp(t, row.want, ignored(&row.cfg, row.group, row.limits, deny.filter(maps.Clone(row.cfg.Env))),
			test.Sprint(name))
	}
}

func TestIgnored_ReportsAnSELinuxLabelAsAnEvent(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	l := listen(t, a)
	dir := t.TempDir()
	cfg := a.shell("exit 0", "", func(c *drivers.TaskConfig) {
		c.Mounts = []*drivers.MountConfig{{TaskPath: dir, HostPath: dir, SELinuxLabel: "z"}}
	})
	a.result(cfg)
	testsupport.Eventually(t, "it is told", func() bool {
		return l.heard(cfg.ID, `volume_mount { destination = "`+dir+`" selinux_label = "z" } has no effect: `+
			"label the volume's files on the host") == 1
	})
}

func TestStartTask_ReportsMissingCgroups(t *testing.T) {
	a := start(t, nil)
	l := listen(t, a)
	cfg := a.shell("exit 0", "")
	cfg.Resources.LinuxResources.CpusetCgroupPath = "" // as Nomad passes it if the agent is not root
	a.result(cfg)
	testsupport.Eventually(t, "it is told", func() bool {
		return l.heard(cfg.ID, "Limits are not enforced: "+whyNoCgroup(cgroups.now())) == 1
	})
}

func TestIgnored_ListsNetworkSettingsIfTheAgentCannotMount(t *testing.T) {
	mayMount := canMount
	t.Cleanup(func() { canMount = mayMount })
	canMount = func() bool { return false }
	cfg := &drivers.TaskConfig{}
	network(&drivers.DNSConfig{Servers: []string{"10.0.0.1", "10.0.0.2"}, Options: []string{"edns0"}}, "web")(cfg)
	test.Eq(t, []string{
		`network { dns { servers = ["10.0.0.1", "10.0.0.2"], options = ["edns0"] } } has no effect, whether set by the job ` +
			`or its network: without CAP_SYS_ADMIN, tasks use the host's /etc/resolv.conf; change that file, or configure the program`,
		`network { hostname = "web" } has no effect: without CAP_SYS_ADMIN, tasks have the host's name; configure the program`,
	}, ignored(cfg, cgroup.Group{}, cgroup.Limits{}, nil))
	own, err := isolation(PluginOptions{}, TaskOptions{}, cfg)
	test.NoError(t, err)
	test.Eq(t, task.Isolation{}, own)
	_, err = isolation(PluginOptions{}, TaskOptions{Isolate: []string{"tmp"}}, cfg)
	test.EqError(t, err, "isolate can't be used on this node: the agent lacks CAP_SYS_ADMIN")
}
