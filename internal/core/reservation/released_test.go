// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package reservation

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

const envFile = "env.json" // the environment that Nomad saves

// The device plugin that made a reservation, and the driver that reads it, may be of different versions.
func TestRecall_ReadsReservationsOfEachRelease(t *testing.T) {
	record := func(t *testing.T, dir string) {
		r := stick("zigbee")
		must.NoError(t, Remember(r))
		b, err := json.MarshalIndent(r.Envs, "", "  ")
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(filepath.Join(dir, envFile), append(b, '\n'), 0o644))
		testsupport.RecordFields(t, dir, remembered{})
	}
	testsupport.EachRelease(t, record, func(t *testing.T, dir string) {
		testsupport.KeepsFields(t, dir, remembered{})
		b, err := os.ReadFile(filepath.Join(dir, envFile))
		must.NoError(t, err)
		var env map[string]string
		must.NoError(t, json.Unmarshal(b, &env))
		later := maps.Clone(env)
		for name, value := range env {
			if strings.HasPrefix(name, Prefix) {
				later[name] = string(testsupport.LaterJSON(t, []byte(value)))
			}
		}
		want := stick("zigbee")
		for _, env := range []map[string]string{env, later} {
			devices, mounts, err := Recall(env)
			must.NoError(t, err)
			must.SliceLen(t, len(want.Devices), devices)
			must.SliceLen(t, len(want.Mounts), mounts)
			for i, d := range want.Devices {
				got := devices[i]
				test.Eq(t, []string{d.HostPath, d.TaskPath, d.CgroupPerms}, []string{got.HostPath, got.TaskPath, got.Permissions})
			}
			for i, m := range want.Mounts {
				test.Eq(t, []string{m.HostPath, m.TaskPath}, []string{mounts[i].HostPath, mounts[i].TaskPath})
				test.Eq(t, m.ReadOnly, mounts[i].Readonly)
			}
		}
	})
}
