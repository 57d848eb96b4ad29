// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"strconv"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// spec is what a valid configuration that fits its endpoint runs there. The environment and
// the paths of the node are left to the engine.
func (t TaskConfig) spec(task *drivers.TaskConfig, e Endpoint) *endpoint.Spec {
	cpu, _ := strconv.ParseFloat(t.Resources.CPU, 64) // which Validate has seen
	s := &endpoint.Spec{
		Task: task.Name, Env: task.Env, User: task.User,
		Resources: endpoint.Resources{CPU: cpu, Memory: t.Resources.Memory.Bytes(), Pids: t.Resources.Pids},
		Ports:     numbers(t.Ports),
		MaxFiles:  t.Logs.MaxFiles, MaxSize: int64(t.Logs.MaxFileSize) << 20,
	}
	if e.SSH != nil {
		s.Process = &endpoint.Process{Command: t.Command, Args: t.Args, WorkDir: t.WorkDir, Mode: given(t.KillMode)}
		return s
	}
	s.Container = &endpoint.Container{
		Image: t.Image, Pull: given(t.Pull), Entrypoint: t.Entrypoint, Command: t.Args, WorkDir: t.WorkDir,
		Network: t.Network, Publish: numbers(t.Publish),
	}
	for _, m := range t.Mounts {
		s.Container.Mounts = append(s.Container.Mounts, endpoint.ContainerMount(m))
	}
	return s
}

// numbers are ports, which Validate has seen.
func numbers(texts map[string]string) map[string]int {
	if len(texts) == 0 {
		return nil
	}
	all := make(map[string]int, len(texts))
	for label, text := range texts {
		all[label], _ = strconv.Atoi(text)
	}
	return all
}
