// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/reservation"
)

// checkGroups reports everything in a list of devices that Nomad would refuse or that would mislead Nomad's scheduler.
func checkGroups(t *testing.T, groups []*device.DeviceGroup) {
	t.Helper()
	names, ids := map[string]bool{}, map[string]bool{}
	for _, g := range groups {
		name := g.Vendor + "/" + g.Type + "/" + g.Name
		if err := g.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if strings.Contains(g.Vendor+g.Type, "/") || names[name] {
			t.Errorf("%s: has a slash in vendor or type, or occurs twice", name)
		}
		names[name] = true
		var well []string
		for _, d := range g.Devices {
			if structs.ParseAttribute(d.ID).String == nil || strings.ContainsAny(d.ID, ", ") || ids[d.ID] {
				t.Errorf("%s: id %q looks like a number, has a comma or a space, or occurs twice", name, d.ID)
			}
			ids[d.ID] = true
			if d.Healthy {
				well = append(well, d.ID)
			} else if d.HealthDesc == "" {
				t.Errorf("%s: device %s is unhealthy without a reason", name, d.ID)
			}
		}
		if n := len(well); n > 0 && n < len(g.Devices) {
			t.Errorf("%s: has both healthy and unhealthy devices", name)
		}
		slices.Sort(well)
		if a := g.Attributes["ids"]; len(well) > 0 && (a == nil || a.String == nil || *a.String != strings.Join(well, ",")) {
			t.Errorf("%s: attribute ids does not name %v", name, well)
		}
		for key, a := range g.Attributes {
			if a.Float != nil && (math.IsNaN(*a.Float) || math.IsInf(*a.Float, 0)) {
				t.Errorf("%s: attribute %s is not a finite number: %v", name, key, *a.Float)
			}
		}
	}
}

func checkReservation(t *testing.T, id string, r *device.ContainerReservation) {
	t.Helper()
	if len(r.Envs)+len(r.Devices)+len(r.Mounts) == 0 {
		t.Errorf("%s: the reservation is empty", id)
	}
	var devices []*drivers.DeviceConfig
	seen := map[string]bool{}
	at := func(host, task string) {
		if _, err := os.Stat(host); err != nil {
			t.Errorf("%s: %v", id, err)
		}
		if !filepath.IsAbs(task) || seen[task] {
			t.Errorf("%s: path %q in the task is not absolute, or is used twice", id, task)
		}
		seen[task] = true
	}
	for _, s := range r.Devices {
		at(s.HostPath, s.TaskPath)
		devices = append(devices, &drivers.DeviceConfig{
			HostPath: s.HostPath, TaskPath: s.TaskPath, Permissions: s.CgroupPerms,
		})
	}
	var mounts []*drivers.MountConfig
	for _, m := range r.Mounts {
		at(m.HostPath, m.TaskPath)
		mounts = append(mounts, &drivers.MountConfig{HostPath: m.HostPath, TaskPath: m.TaskPath, Readonly: m.ReadOnly})
	}
	gotDevices, gotMounts, err := reservation.Recall(r.Envs)
	if err != nil || !reflect.DeepEqual(gotDevices, devices) || !reflect.DeepEqual(gotMounts, mounts) {
		t.Errorf("%s: Recall returned %v, %v, %v", id, gotDevices, gotMounts, err)
	}
	for name, value := range r.Envs {
		if name == "" || strings.ContainsAny(name, "= \x00") || strings.Contains(value, "${") {
			t.Errorf("%s: invalid environment variable %s=%s", id, name, value)
		}
	}
}

func healthy(groups []*device.DeviceGroup) (ids []string) {
	for _, g := range groups {
		for _, d := range g.Devices {
			if d.Healthy {
				ids = append(ids, d.ID)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

func describe(groups []*device.DeviceGroup) string {
	var b strings.Builder
	for _, g := range groups {
		fmt.Fprintf(&b, "%s/%s/%s", g.Vendor, g.Type, g.Name)
		for _, d := range g.Devices {
			fmt.Fprintf(&b, " %s(%t %s)", d.ID, d.Healthy, d.HealthDesc)
		}
		b.WriteString("; ")
	}
	return b.String()
}
