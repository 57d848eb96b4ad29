// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// unplaced explains why task groups were not placed. First it prints how to get what is missing.
func (r *jobRun) unplaced(ctx context.Context, failed map[string]*api.AllocationMetric) string {
	why := reasons(failed)
	if strings.Contains(why, "devices") {
		r.adviseDevices(ctx, failed)
	}
	if strings.Contains(why, "host volumes") {
		r.lab.say("The job needs a volume that the node does not have, or not for what the job does with it. " +
			"It is made by:\n")
		r.lab.hint("%s\n", createVolume("FILE"))
	}
	if strings.Contains(why, "driver."+remoteDriver+".endpoint.") && remote(r.info.Labels[remoteLabel]) != remoteSim {
		r.lab.say("This lab has no host for the driver " + remoteDriver + ". It gets one with:\n")
		r.lab.hint("lab:up -remote=sim\n")
	}
	if !strings.Contains(why, "missing drivers") {
		return why
	}
	var drivers []string
	for _, g := range r.job.TaskGroups {
		if failed[*g.Name] == nil {
			continue
		}
		for _, t := range g.Tasks {
			if !slices.Contains(drivers, t.Driver) {
				drivers = append(drivers, t.Driver)
			}
		}
	}
	found, _ := nomad.Health(ctx, r.client, drivers...) // whatever is wrong is in what was found
	var troubles []string
	for _, d := range found {
		if text := absence(d, r.info); text != "" {
			troubles = append(troubles, text)
		}
	}
	return strings.Join(append([]string{why}, troubles...), "; ")
}

// absence is why a driver is not available, empty if it is.
func absence(d nomad.Driver, i agent.Info) string {
	switch {
	case d.Healthy:
		return ""
	case d.Description != "":
		return fmt.Sprintf("driver %s is %s: %s", d.Name, health(d), d.Description)
	case slices.Contains(i.Drivers(), d.Name):
		return fmt.Sprintf("driver %s is missing: the agent did not load its plugin", d.Name)
	default:
		return fmt.Sprintf("driver %s is not in this lab, which has %s and raw_exec", d.Name, joined(i.Drivers()))
	}
}

// adviseDevices prints the node's devices, and how to get the simulated stick if a failed group asks for one.
func (r *jobRun) adviseDevices(ctx context.Context, failed map[string]*api.AllocationMetric) {
	devices, err := nomad.Devices(ctx, r.client)
	if err == nil && len(devices) > 0 {
		r.lab.say("The node has these devices:\n")
		if err := term.Table(r.lab.out, deviceRows(devices)...); err != nil {
			return
		}
		r.lab.say("")
	}
	if wants(r.job, failed, simType) {
		if text, command := deviceAdvice(r.info, runs(ctx, r.client, simJob)); text != "" {
			r.lab.say("%s It gets one with:\n", text)
			r.lab.hint("%s\n", command)
		}
	}
	if wants(r.job, failed, datasetType) && !dataset(r.info.Labels[datasetLabel]).inFile() {
		r.lab.say(`This lab has no scratch (device "` + datasetType + `"). It gets some, as root, with:` + "\n")
		r.lab.hint("lab:up -dataset=zfs-fuse\n")
	}
}

// wants reports whether a failed group of a job requests a device of a type. The name of a request is TYPE,
// VENDOR/TYPE or VENDOR/TYPE/NAME.
func wants(job *api.Job, failed map[string]*api.AllocationMetric, deviceType string) bool {
	for _, g := range job.TaskGroups {
		for _, t := range g.Tasks {
			if failed[*g.Name] == nil || t.Resources == nil {
				continue
			}
			for _, d := range t.Resources.Devices {
				parts := strings.Split(d.Name, "/")
				if parts[min(1, len(parts)-1)] == deviceType {
					return true
				}
			}
		}
	}
	return false
}

// deviceAdvice is how a lab gets the device that the examples use.
func deviceAdvice(i agent.Info, plugged bool) (text, command string) {
	switch {
	case i.Labels[usbLabel] != string(usbSim):
		return `This lab has no simulated stick (device "` + simType + `").`, "lab:up -usb=sim"
	case !plugged:
		return `The lab's simulated stick (device "` + simType + `") is pulled out.`, "lab:up"
	default:
		return "", ""
	}
}

// reasons describes why task groups were not placed.
func reasons(failed map[string]*api.AllocationMetric) string {
	var out []string
	for group, m := range failed {
		var why []string
		for c, n := range m.ConstraintFiltered {
			why = append(why, fmt.Sprintf("%s (%d node)", c, n))
		}
		for d, n := range m.DimensionExhausted {
			if !strings.Contains(d, ":") { // else a sentence: devices, cores
				d += " exhausted"
			}
			why = append(why, fmt.Sprintf("%s (%d node)", d, n))
		}
		if len(why) == 0 {
			why = []string{"no node is ready"}
		}
		slices.Sort(why)
		out = append(out, fmt.Sprintf("group %s: %s", group, strings.Join(why, ", ")))
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}
