// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// factsEvery is how old facts may be: Podman takes a second for them.
const factsEvery = 10 * time.Minute

// Probe is part of endpoint.Endpoint.
func (e *Endpoint) Probe(ctx context.Context) (*endpoint.Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if _, err := e.api.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return nil, failed("reach the engine", err)
	}
	e.mu.Lock()
	facts, asked := e.facts, e.asked
	e.mu.Unlock()
	if facts != nil && time.Since(asked) < factsEvery {
		return facts, nil
	}
	r, err := e.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, failed("read the engine's properties", err)
	}
	i := r.Info
	if now := stamp(i.SystemTime); !now.IsZero() { // exact, for lag: a Date has whole seconds
		e.clock.see(now)
	}
	facts = &endpoint.Facts{
		Kind: e.kind(), Version: i.ServerVersion, CPUs: i.NCPU, Memory: i.MemTotal, Arch: i.Architecture,
		More: map[string]string{
			"api": e.api.ClientVersion(), "storage": i.Driver, "cgroup": i.CgroupVersion, "kernel": i.KernelVersion,
		},
	}
	if a, ok := endpoint.Archs[i.Architecture]; ok {
		facts.Arch = a
	}
	var missing []string
	for name, ok := range map[string]bool{
		"memory": i.MemoryLimit, "cpu": i.CPUCfsQuota && i.CPUCfsPeriod, "pids": i.PidsLimit,
	} {
		if !ok {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		facts.Limits = "the engine can't limit " + strings.Join(missing, ", ")
	}
	if u, err := url.Parse(e.host); err == nil && u.Scheme == "tcp" {
		facts.Address = u.Hostname()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.facts, e.asked = facts, time.Now()
	return facts, nil
}
