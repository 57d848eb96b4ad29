// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"strings"

	"github.com/moby/moby/api/types/container"
)

// right is one way to give a container the rights that Nomad needs.
type right struct {
	name  string
	apply func(*container.HostConfig)
}

// rights are tried in order.
var rights = []right{
	{"privileged", func(hc *container.HostConfig) { hc.Privileged = true }},
	{"capabilities", func(hc *container.HostConfig) {
		hc.CapAdd = capabilities
		hc.SecurityOpt = append(hc.SecurityOpt, "seccomp=unconfined", "apparmor=unconfined")
		// what `--security-opt systempaths=unconfined` is in the API: /proc/sys and the like
		hc.MaskedPaths, hc.ReadonlyPaths = []string{}, []string{}
		hc.Resources.DeviceCgroupRules = []string{"a *:* rwm"}
	}},
}

// capabilities are those that Nomad, its executor and exec-lite use, without those that a daemon in a container
// usually lacks itself (SYS_RESOURCE, SYS_MODULE, SYS_BOOT, SYS_TIME).
var capabilities = []string{
	"SYS_ADMIN",  // mounts, namespaces
	"NET_ADMIN",  // bridge networks of task groups
	"SYS_PTRACE", // read other users' /proc/<pid>
	"SYS_CHROOT", "MKNOD", "SETUID", "SETGID", "SETPCAP", "SETFCAP", "CHOWN", "DAC_OVERRIDE",
	"FOWNER", "FSETID", "KILL", "SYS_NICE", "NET_RAW", "NET_BIND_SERVICE", "AUDIT_WRITE",
}

// refused reports whether the daemon could not give the rights, so that fewer may work.
func refused(err error) bool {
	s := err.Error()
	return strings.Contains(s, "unable to apply caps") || // runc, for a capability that is not in the bounding set
		strings.Contains(s, "operation not permitted") ||
		strings.Contains(s, "rivileged mode is incompatible") || // user namespaces
		strings.Contains(s, "cgroup namespaces aren't enabled")
}
