// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
)

// ignored returns a note for each field of a job that has no effect on this task, and names an alternative. It can't
// report max_files and max_file_size of logs, which Nomad does not pass to drivers. It need not report network modes:
// Nomad itself refuses a job whose network mode the driver does not support.
func ignored(cfg *drivers.TaskConfig, g cgroup.Group, l cgroup.Limits, env map[string]string) (notes []string) {
	note := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if !canMount() { // then isolation sets neither DNS nor a host name
		if dns := formatDNS(cfg.DNS); dns != "" { // set by the job, by CNI or by Consul's transparent proxy
			note("network { dns { %s } } has no effect, whether set by the job or its network: without CAP_SYS_ADMIN, "+
				"tasks use the host's /etc/resolv.conf; change that file, or configure the program", dns)
		}
		if name := hostname(cfg); name != "" {
			note("network { hostname = %q } has no effect: without CAP_SYS_ADMIN, tasks have the host's name; "+
				"configure the program", name)
		}
	}
	for _, m := range cfg.Mounts {
		if m.SELinuxLabel != "" {
			note("volume_mount { destination = %q selinux_label = %q } has no effect: label the volume's files on the host",
				m.TaskPath, m.SELinuxLabel)
		}
	}
	if fields := notLimited(g, l); len(fields) > 0 {
		note("resources { %s } has no effect: this node's cgroups have no controller for it; "+
			"enable it in the kernel, or constrain the job to other nodes", strings.Join(fields, ", "))
	}
	if names := slices.DeleteFunc(slices.Sorted(maps.Keys(cfg.Env)), func(name string) bool {
		_, kept := env[name]
		own, isOwn := os.LookupEnv(name) // the agent's value counts as inherited
		return kept || isOwn && own == cfg.Env[name] || strings.HasPrefix(name, "NOMAD_")
	}); len(names) > 0 {
		note("env { %s } has no effect: the operator denies it to tasks of this node (denied_envvars)",
			strings.Join(names, ", "))
	}
	return notes
}

func formatDNS(dns *drivers.DNSConfig) string {
	if dns == nil {
		return ""
	}
	var words []string
	for _, part := range []struct {
		name   string
		values []string
	}{{"servers", dns.Servers}, {"searches", dns.Searches}, {"options", dns.Options}} {
		if len(part.values) > 0 {
			words = append(words, fmt.Sprintf(`%s = ["%s"]`, part.name, strings.Join(part.values, `", "`)))
		}
	}
	return strings.Join(words, ", ")
}

// notLimited returns the fields of resources for which the cgroup has no controller. If the task has no cgroup at all,
// another event covers all fields.
func notLimited(g cgroup.Group, l cgroup.Limits) (fields []string) {
	if g.Mode == cgroup.None {
		return nil
	}
	for _, f := range []struct {
		name, controller string
		set              bool
	}{
		{"memory", "memory", l.MemoryMax > 0 || l.MemoryLow > 0},
		{"cpu", "cpu", l.CPUShares > 0},
		{"cores", "cpuset", l.Cpuset != ""},
	} {
		if f.set && !g.Has(f.controller) {
			fields = append(fields, f.name)
		}
	}
	return fields
}
