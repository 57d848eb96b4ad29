// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

const noContainers = "exec-lite runs a program of the node, or an artifact, and no container"

// foreign lists options of Nomad's own drivers (v1.11) that exec-lite does not have, and the alternatives. A job of
// another driver in which only the driver was renamed fails with this advice.
var foreign = []struct {
	driver  string
	options []string
	instead string
}{
	{"docker", []string{"image"}, noContainers}, // hides all other options, see Refuse
	{"raw_exec", []string{"cgroup_v1_override", "cgroup_v2_override"},
		"exec-lite keeps a task in the cgroup that Nomad made for it, with the limits of its resources block"},
	{"exec", []string{"pid_mode", "ipc_mode"}, "tasks of exec-lite see the processes and the IPC of the node"},
	{"docker", strings.Fields(`
		advertise_ipv6_address auth auth_soft_fail cgroupns container_exists_attempts cpu_cfs_period
		cpuset_cpus devices dns_options dns_search_domains dns_servers entrypoint extra_hosts force_pull group_add
		healthchecks hostname image_pull_timeout init interactive ipv4_address ipv6_address isolation labels load logging
		mac_address memory_hard_limit mount mounts network_aliases network_mode port_map ports privileged readonly_rootfs
		runtime security_opt shm_size storage_opt sysctl tty userns_mode uts_mode volume_driver volumes`), noContainers},
}

// Refused implements schema's refuser, together with Refuse.
func (*TaskConfig) Refused() (options []string) {
	for _, f := range foreign {
		options = append(options, f.options...)
	}
	return options
}

// Refuse returns an error of one line. With image it names no other option: containers have many.
func (*TaskConfig) Refuse(written []string) error {
	if written[0] == "image" {
		written = written[:1]
	}
	var parts []string
	for _, f := range foreign {
		var found []string
		for _, name := range f.options {
			if slices.Contains(written, name) {
				found = append(found, fmt.Sprintf("%q", name))
			}
		}
		if len(found) > 0 {
			parts = append(parts, fmt.Sprintf("%s of %s: %s", strings.Join(found, ", "), f.driver, f.instead))
		}
	}
	return errors.New("option " + strings.Join(parts, "; ") + " (docs/guides/migrate.md)")
}
