// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package reservation

import (
	"maps"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func stick(name string) *device.ContainerReservation {
	return &device.ContainerReservation{
		Envs:    map[string]string{"USB_" + name: "/dev/" + name},
		Devices: []*device.DeviceSpec{{HostPath: "/dev/nomad-usb/" + name, TaskPath: "/dev/" + name, CgroupPerms: "rw"}},
		Mounts: []*device.Mount{
			{HostPath: "/dev/nomad-usb/bus", TaskPath: "/dev/bus/usb", ReadOnly: true},
			{HostPath: "/srv/" + name, TaskPath: "/data"},
		},
	}
}

func TestRecall_RestoresRememberedReservations(t *testing.T) {
	a, b := stick("zigbee"), stick("ups")
	for _, r := range []*device.ContainerReservation{a, b} {
		must.NoError(t, Remember(r))
	}
	env := map[string]string{"PATH": "/bin"}
	maps.Copy(env, a.Envs)
	maps.Copy(env, b.Envs) // Nomad also lets the last value of a variable win
	must.MapLen(t, 5, env)
	devices, mounts, err := Recall(env)
	must.NoError(t, err)
	for _, name := range []string{"zigbee", "ups"} {
		want := &drivers.DeviceConfig{HostPath: "/dev/nomad-usb/" + name, TaskPath: "/dev/" + name, Permissions: "rw"}
		test.True(t, containsDeep(devices, want), test.Sprintf("no %+v in %+v", want, devices))
		for _, want := range []*drivers.MountConfig{
			{HostPath: "/dev/nomad-usb/bus", TaskPath: "/dev/bus/usb", Readonly: true}, {HostPath: "/srv/" + name,
				TaskPath: "/data"},
		} {
			test.True(t, containsDeep(mounts, want), test.Sprintf("no %+v in %+v", want, mounts))
		}
	}
	must.SliceLen(t, 2, devices)
	test.SliceLen(t, 4, mounts)
	for range 20 {
		again, _, _ := Recall(env)
		must.Eq(t, again, devices, must.Sprint("another order the second time"))
	}
}

func containsDeep[T any](all []T, want T) bool {
	for _, a := range all {
		if reflect.DeepEqual(a, want) {
			return true
		}
	}
	return false
}

func TestRemember_VariableNameDependsOnTheContent(t *testing.T) {
	a, same, other := stick("a"), stick("a"), stick("b")
	for _, r := range []*device.ContainerReservation{a, same, other} {
		must.NoError(t, Remember(r))
	}
	test.MapEqOp(t, same.Envs, a.Envs, test.Sprintf("%v and %v differ", a.Envs, same.Envs))
	names := map[string]bool{}
	for _, r := range []*device.ContainerReservation{a, other} {
		for name := range r.Envs {
			if strings.HasPrefix(name, Prefix) {
				names[name] = true
				test.True(t, regexp.MustCompile(`^OUTRIDER_RESERVATION_[0-9a-f]{8}$`).MatchString(name),
					test.Sprintf("got %s", name))
			}
		}
	}
	test.MapLen(t, 2, names)
}

func TestRemember_DoesNotChangeThePluginsMap(t *testing.T) {
	r := stick("a")
	own := r.Envs
	must.NoError(t, Remember(r))
	must.MapLen(t, 1, own)
	test.MapLen(t, 2, r.Envs)
}

func TestRemember_AddsNothingForAnEmptyReservation(t *testing.T) {
	r := &device.ContainerReservation{Envs: map[string]string{"A": "b"}}
	must.NoError(t, Remember(r))
	test.MapLen(t, 1, r.Envs)
	devices, mounts, err := Recall(r.Envs)
	must.NoError(t, err)
	must.Nil(t, devices)
	test.Nil(t, mounts)
}

// Nomad replaces ${...} in the result of a device plugin with the task's variables, which the job's
// author chooses.
func TestRemember_PreventsInterpolation(t *testing.T) {
	r := &device.ContainerReservation{Mounts: []*device.Mount{{HostPath: "/srv/${EVIL}", TaskPath: "/$a"}}}
	must.NoError(t, Remember(r))
	for _, value := range r.Envs {
		test.StrNotContains(t, value, "$")
	}
	_, mounts, err := Recall(r.Envs)
	must.NoError(t, err)
	must.SliceLen(t, 1, mounts)
	must.Eq(t, "/srv/${EVIL}", mounts[0].HostPath)
	test.Eq(t, "/$a", mounts[0].TaskPath)
}

func TestReservation_RefusesInvalidValues(t *testing.T) {
	for name, c := range map[string]struct {
		r     *device.ContainerReservation
		value string
		want  string
	}{
		"a relative host path": {
			&device.ContainerReservation{Devices: []*device.DeviceSpec{{HostPath: "ttyUSB0", TaskPath: "/dev/a",
				CgroupPerms: "rw"}}},
			`{"devices":[{"host":"ttyUSB0","task":"/dev/a","permissions":"rw"}]}`,
			`host path "ttyUSB0" of a device is not allowed: begin it with /, and do not use ".."`},
		"a way up": {
			&device.ContainerReservation{Mounts: []*device.Mount{{HostPath: "/dev/../etc", TaskPath: "/x"}}},
			`{"mounts":[{"host":"/dev/../etc","task":"/x"}]}`,
			`host path "/dev/../etc" of a mount is not allowed`},
		"a way up in the task": {
			&device.ContainerReservation{Mounts: []*device.Mount{{HostPath: "/dev", TaskPath: "/.."}}},
			`{"mounts":[{"host":"/dev","task":"/.."}]}`,
			`task path "/.." of a mount is not allowed`},
		"a path that ends early": {
			&device.ContainerReservation{Devices: []*device.DeviceSpec{{HostPath: "/dev/sda\x00/tty", TaskPath: "/dev/a",
				CgroupPerms: "rw"}}},
			`{"devices":[{"host":"/dev/sda\u0000/tty","task":"/dev/a","permissions":"rw"}]}`,
			`host path "/dev/sda\x00/tty" of a device is not allowed`},
		"no path": {
			&device.ContainerReservation{Devices: []*device.DeviceSpec{{HostPath: "/dev/a", CgroupPerms: "rw"}}},
			`{"devices":[{"host":"/dev/a","permissions":"rw"}]}`,
			`task path "" of a device is not allowed`},
		"unknown permissions": {
			&device.ContainerReservation{Devices: []*device.DeviceSpec{{HostPath: "/dev/a", TaskPath: "/dev/a",
				CgroupPerms: "rwx"}}},
			`{"devices":[{"host":"/dev/a","task":"/dev/a","permissions":"rwx"}]}`,
			`device /dev/a has invalid permissions "rwx": use only the letters r, w and m`},
	} {
		t.Run(name, func(t *testing.T) {
			if err := Remember(c.r); err == nil || !strings.Contains(err.Error(), c.want) || len(c.r.Envs) > 0 {
				t.Errorf("remembered as %v, %v", c.r.Envs, err)
			}
			devices, mounts, err := Recall(map[string]string{Prefix + "0000000a": c.value})
			if err == nil || !strings.Contains(err.Error(), "environment variable "+Prefix+"0000000a: "+c.want) ||
				devices != nil || mounts != nil {
				t.Errorf("recalled %v, %v, %v", devices, mounts, err)
			}
		})
	}
}

func TestRecall_ErrorNamesVariable(t *testing.T) {
	good := stick("a")
	must.NoError(t, Remember(good))
	for _, value := range []string{"", "x", "[]", `{"devices":`, `{} {}`, `{"devices":[{"host":1}]}`} {
		env := maps.Clone(good.Envs)
		env[Prefix+"deadbeef"] = value
		devices, mounts, err := Recall(env)
		if err == nil || !strings.Contains(err.Error(), Prefix+"deadbeef is not a valid reservation") || devices != nil ||
			mounts != nil {
			t.Errorf("%q: got %v, %v, %v", value, devices, mounts, err)
		}
	}
}
