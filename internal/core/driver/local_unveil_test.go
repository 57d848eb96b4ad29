// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
)

func TestUnveil_CombinesPathsOfTaskOperatorAndAuthor(t *testing.T) {
	cfg := &drivers.TaskConfig{Name: "task", AllocDir: "/alloc"}
	cmd := &task.Command{
		Mounts: []task.Mount{{Source: "/srv/a", Target: "/data"}, {Source: "/srv/b", Target: "/config", ReadOnly: true}},
		Devices: []task.Device{
			{HostPath: "/dev/ttyUSB0", TaskPath: "/dev/tty1"},
			{HostPath: "/dev/nomad-usb/stick/tty", TaskPath: "/dev/zigbee/tty"},
		},
	}
	p := PluginOptions{Unveil: "strict", UnveilDefaults: true, UnveilPaths: []string{"r:/srv/models"}, UnveilByTask: true}
	u, err := unveil(p, TaskOptions{Unveil: []string{"rwc:/tmp/../tmp", "x:/with:colon"}}, cfg, cmd)
	must.NoError(t, err)
	test.Eq(t, &task.Unveil{Defaults: true, Strict: true, Paths: []task.UnveiledPath{
		{Path: "/alloc/task", Modes: "rwxc"},
		{Path: "/alloc/alloc", Modes: "rwxc", Optional: true},
		{Path: "/data", Modes: "rwxc"},
		{Path: "/config", Modes: "rx"},
		{Path: "/dev/ttyUSB0", Modes: "rw"},
		{Path: "/dev/nomad-usb/stick", Modes: "rw"}, // the directory: a re-plugged device has a new node
		{Path: "/srv/models", Modes: "r"},
		{Path: "/tmp", Modes: "rwc", Author: true},
		{Path: "/with:colon", Modes: "x", Author: true},
	}}, u)

	p.Unveil = "off"
	u, err = unveil(p, TaskOptions{}, cfg, cmd)
	must.NoError(t, err)
	test.Nil(t, u)
}

func TestUnveil_RefusalsAreOneSentence(t *testing.T) {
	cfg := &drivers.TaskConfig{Name: "task", AllocDir: "/alloc"}
	for _, row := range []struct {
		options PluginOptions
		path    string
		want    string
	}{
		{PluginOptions{Unveil: "off", UnveilByTask: true}, "r:/srv", "does not confine tasks"},
		{PluginOptions{Unveil: "strict"}, "r:/srv", "unveil_by_task"},
		{PluginOptions{Unveil: "strict", UnveilByTask: true}, "/srv", "does not begin with access rights"},
		{PluginOptions{Unveil: "strict", UnveilByTask: true}, "rwd:/srv", "does not begin with access rights"},
		{PluginOptions{Unveil: "strict", UnveilByTask: true}, ":/srv", "does not begin with access rights"},
		{PluginOptions{Unveil: "strict", UnveilByTask: true}, "r:srv", "is not absolute"},
	} {
		_, err := unveil(row.options, TaskOptions{Unveil: []string{row.path}}, cfg, &task.Command{})
		test.ErrorContains(t, err, row.want, test.Sprintf("%+v", row))
	}
	_, err := unveiledPaths("unveil_paths", []string{"r:/srv", "r:srv"})
	test.EqError(t, err, `unveil_paths: the path in "r:srv" is not absolute: begin it with /`)
}

func TestUnveil_ReportsAKernelThatCannotConfineTasks(t *testing.T) {
	best := PluginOptions{Unveil: "best-effort"}
	test.Eq(t, "", unveilLimit(PluginOptions{Unveil: "off"}, 0))
	test.Eq(t, "", unveilLimit(best, 3))
	test.Eq(t, "this kernel has no Landlock, so tasks can't be confined", unveilLimit(best, 0))
	test.Eq(t, "this kernel has Landlock version 2, but complete confinement needs version 3", unveilLimit(best, 2))
}
