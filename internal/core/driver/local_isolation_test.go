// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// network returns a function that sets the DNS settings and the host name of a task's group network.
func network(dns *drivers.DNSConfig, hostname string) func(*drivers.TaskConfig) {
	return func(c *drivers.TaskConfig) {
		c.DNS = dns
		c.NetworkIsolation = &drivers.NetworkIsolationSpec{
			Labels:      map[string]string{"docker_sandbox_hostname": hostname},
			HostsConfig: &drivers.HostsConfig{Hostname: hostname, Address: "10.1.2.3"},
		}
	}
}

func TestIsolation_AppliesToTheTaskAndItsSessions(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	if a.share == "" {
		t.Skip("tasks have no cgroup")
	}
	host, err := os.MkdirTemp("/tmp", "outrider-driver-")
	must.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(host) })
	own := func(namespace string) string {
		link, err := os.Readlink("/proc/self/ns/" + namespace)
		must.NoError(t, err)
		return `[ "$(readlink /proc/self/ns/` + namespace + `)" = "` + link + `" ] && echo shared ` + namespace + "; "
	}
	script := own("ipc") + own("uts") + own("pid") + own("mnt") + "cat /proc/1/comm; " +
		"[ -e /proc/self/stat ] || echo not in /proc; hostname; tail -n 1 /etc/hosts; " +
		"cat /etc/resolv.conf; ls -d " + host + " 2>/dev/null; [ /tmp -ef $NOMAD_TASK_DIR/../tmp ] && echo own tmp; "
	change := func(c *drivers.TaskConfig) {
		network(&drivers.DNSConfig{Servers: []string{"10.9.9.9"}, Searches: []string{"a.example", "b.example"},
			Options: []string{"ndots:2"}}, "web")(c)
	}
	cfg := a.shell(script+"sleep 600", `isolate = ["tmp", "ipc", "pid"]`, change)
	cfg.Env["NOMAD_TASK_DIR"] = cfg.TaskDir().LocalDir
	a.printsEverywhere(cfg, script, "outrider-init\nweb\n10.1.2.3 web\nsearch a.example b.example\n"+
		"nameserver 10.9.9.9\noptions ndots:2\nown tmp\n")
	must.NoError(t, a.StopTask(cfg.ID, 0, ""))
	a.destroy(cfg.ID)
}

func TestIsolation_ExitsAreExactInAPIDNamespace(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	if a.share == "" {
		t.Skip("tasks have no cgroup")
	}
	for script, want := range map[string]string{
		"exit 7":       "code 7",
		"kill -9 $$":   "signal 9",
		"kill -TERM 1": "code 0", // process 1 of the namespace ignores SIGTERM
	} {
		_, r := a.result(a.shell(a.background("600")+script, `isolate = ["pid"]`))
		exit := &task.Exit{Code: r.ExitCode, Signal: r.Signal}
		test.Eq(t, want, exit.String(), test.Sprint(script))
	}
}

func TestIsolation_PIDNamespaceNeedsACgroup(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	cfg := a.shell("exit 0", `isolate = ["pid"]`)
	cfg.Resources.LinuxResources.CpusetCgroupPath = "" // as Nomad passes it if the agent can't use cgroups
	_, _, err := a.StartTask(cfg)
	test.ErrorContains(t, err, `isolate = ["pid"] can't be used on this node: `+whyNoCgroup(cgroups.now()))
}

func TestIsolation_CombinesPluginAndTaskOptions(t *testing.T) {
	testsupport.NeedRoot(t)
	for name, row := range map[string]struct {
		operator, author []string
		want             task.Isolation
		refused          string
	}{
		"none":       {},
		"operator's": {operator: []string{"tmp"}, want: task.Isolation{Tmp: true}},
		"author's":   {author: []string{"pid"}, want: task.Isolation{PID: true}},
		"both": {operator: []string{"ipc", "tmp"}, author: []string{"tmp", "pid"},
			want: task.Isolation{Tmp: true, IPC: true, PID: true}},
		"unknown": {author: []string{"net"}, refused: `isolate: "net" is not known: use "tmp", "ipc" or "pid"`},
	} {
		got, err := isolation(PluginOptions{Isolate: row.operator}, TaskOptions{Isolate: row.author}, &drivers.TaskConfig{})
		if row.refused != "" {
			test.EqError(t, err, row.refused, test.Sprint(name))
			continue
		}
		must.NoError(t, err, must.Sprint(name))
		test.Eq(t, row.want, got, test.Sprint(name))
	}
}

func TestIsolation_DNSFallsBackToTheHostsSettings(t *testing.T) {
	const host = "# a comment\nnameserver 10.0.0.1\nnameserver 10.0.0.2\nsearch  host.example\noptions edns0\n"
	for name, row := range map[string]struct {
		host string
		dns  drivers.DNSConfig
		want string
	}{
		"servers": {host, drivers.DNSConfig{Servers: []string{"1.1.1.1", "2.2.2.2"}},
			"search host.example\nnameserver 1.1.1.1\nnameserver 2.2.2.2\noptions edns0\n"},
		"searches": {host, drivers.DNSConfig{Searches: []string{"x.example"}},
			"search x.example\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions edns0\n"},
		"options": {"domain d.example", drivers.DNSConfig{Options: []string{"ndots:1"}},
			"domain d.example\noptions ndots:1\n"},
		"host has no DNS": {"", drivers.DNSConfig{Servers: []string{"1.1.1.1"}}, "nameserver 1.1.1.1\n"},
	} {
		test.Eq(t, row.want, resolvConf(row.host, &row.dns), test.Sprint(name))
	}
}

func TestIsolation_SetsNoNewPrivsIfTheJobSetsDNSOrHostname(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	const script = "grep NoNewPrivs /proc/self/status"
	dns := network(&drivers.DNSConfig{Servers: []string{"10.9.9.9"}}, "")
	nobody := func(c *drivers.TaskConfig) { c.User = "nobody" }
	for name, row := range map[string]struct {
		more   string
		change []func(*drivers.TaskConfig)
		want   string
	}{
		"none":        {"", []func(*drivers.TaskConfig){nobody}, "0"},
		"asked for":   {"no_new_privs = true", nil, "1"},
		"own DNS":     {"", []func(*drivers.TaskConfig){nobody, dns}, "1"},
		"DNS of root": {"", []func(*drivers.TaskConfig){dns}, "0"},
	} {
		out, _ := a.result(a.shell(script, row.more, row.change...))
		test.Eq(t, "NoNewPrivs:\t"+row.want, strings.TrimSpace(out), test.Sprint(name))
	}
}
