// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"os"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestUnplug_IsReportedAndStopsATaskWithOnUnplugStop(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t, nil)
	var events <-chan *drivers.TaskEvent
	watch := func(id string) {
		t.Helper()
		var err error
		events, err = a.TaskEvents(t.Context())
		must.NoError(t, err)
		_, err = a.WaitTask(t.Context(), id) // the driver delivers events only after this call
		must.NoError(t, err)
	}
	says := func(want string) {
		t.Helper()
		timeout := time.After(time.Minute)
		for {
			select {
			case e := <-events:
				if e.Message == want {
					return
				}
			case <-timeout:
				t.Fatalf("no event is %q", want)
			}
		}
	}
	for name, options := range map[string]string{
		"ignored": "", "stopped": "on_unplug = \"stop\"\nunplug_delay = \"3s\"\n",
	} {
		t.Run(name, func(t *testing.T) {
			host := stick(t)
			cfg := a.shell("trap 'exit 0' INT; while :; do sleep 0.1; done", options, reserve([]*drivers.DeviceConfig{
				{HostPath: host, TaskPath: "/dev/zigbee/tty"}, {HostPath: host, TaskPath: "/dev/serial/by-id/stick"},
				{HostPath: "/dev/null", TaskPath: "/dev/null"},
			}, nil))
			th := a.run(cfg)
			watch(cfg.ID)
			if options == "" {
				must.NoError(t, os.Rename(host, host+".away"))
				says("Device: unplugged: /dev/zigbee/tty")
				must.NoError(t, os.Rename(host+".away", host))
				says("Device: plugged in again (the program must reopen it): /dev/zigbee/tty")
			}
			a.restart()
			must.NoError(t, a.RecoverTask(wire(t, th)))
			watch(cfg.ID)
			must.NoError(t, os.Remove(host))
			says("Device: unplugged: /dev/zigbee/tty")
			if options == "" {
				must.NoError(t, a.StopTask(cfg.ID, time.Minute, ""))
			}
			r := a.wait(cfg.ID)
			must.Zero(t, r.ExitCode)
			if options == "" {
				must.NoError(t, r.Err)
				must.True(t, r.Successful())
			} else {
				must.ErrorContains(t, r.Err, "stopped because its device was unplugged for 3s: /dev/zigbee/tty")
				must.False(t, r.Successful())
			}
			a.destroy(cfg.ID)
		})
	}
}
