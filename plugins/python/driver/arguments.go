// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"strconv"

	"github.com/hashicorp/nomad/client/lib/idset"
	"github.com/hashicorp/nomad/client/lib/numalib/hw"

	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// interpreterArgs are the options before the program.
func interpreterArgs(r *request, python interpreter.Interpreter) []string {
	var args []string
	if r.Config.Unbuffered {
		args = append(args, "-u")
	}
	if r.Config.Isolated {
		args = append(args, "-I")
	}
	args = append(args, "-X", "faulthandler") // as an option: isolated ignores the variable
	if n := cores(r); n > 0 && interpreter.CompareVersions(python.Version, "3.13") >= 0 {
		args = append(args, "-X", "cpu_count="+strconv.Itoa(n)) // os.cpu_count() is the host's otherwise
	}
	return append(args, r.Config.InterpreterArgs...)
}

// cores is how many the job reserved for the task (resources { cores = 2 }), 0 for none.
func cores(r *request) int {
	if r.Task.Resources == nil || r.Task.Resources.LinuxResources == nil {
		return 0
	}
	return idset.Parse[hw.CoreID](r.Task.Resources.LinuxResources.CpusetCpus).Size()
}
