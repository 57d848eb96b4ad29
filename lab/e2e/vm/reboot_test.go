// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// plugTwin makes a serial stick without a serial number, and plugs it into a port. A background process writes the
// bytes that the stick receives to a file.
const plugTwin = `PATH=$PATH:/usr/sbin:/sbin
port=$1 name=twin$1
modprobe dummy_hcd num=2
modprobe -a libcomposite cdc_acm
mkdir /sys/kernel/config/usb_gadget/$name
cd /sys/kernel/config/usb_gadget/$name
echo 0x1d6b >idVendor
echo 0x0108 >idProduct
echo 0x0200 >bcdUSB
mkdir -p strings/0x409 configs/c.1 functions/acm.$name
echo "Serial stick" >strings/0x409/product
ln -s functions/acm.$name configs/c.1
echo dummy_udc.$port >UDC
far=/dev/ttyGS$(cat functions/acm.$name/port_num)
stty -F $far raw -echo
setsid cat $far >/run/usb-$name 2>/dev/null </dev/null &
until ls -d /sys/devices/platform/dummy_hcd.$port/usb*/*/*/tty/*; do sleep 0.05; done`

// plug plugs in the twins in this order, each into its own port.
func (h *host) plug(order ...int) {
	h.t.Helper()
	for _, i := range order {
		h.run(nil, "sh", "-ec", plugTwin, "sh", fmt.Sprint(i))
	}
}

// writer returns a service that repeatedly writes its name to its stick.
func writer(name, id string) *api.Job {
	script := "while :; do (echo " + name + " >$USB_TWIN_TTY) 2>/dev/null; sleep 0.2; done"
	job, task := nomadtest.Job(name, "exec-lite", nomadtest.Shell(script))
	job.Type = new("service")
	task.Resources.Devices = []*api.RequestedDevice{nomadtest.OneDevice("twin", id)}
	job.TaskGroups[0].ReschedulePolicy = nil
	job.TaskGroups[0].RestartPolicy = &api.RestartPolicy{Attempts: new(20), Mode: new("delay"),
		Interval: new(time.Minute), Delay: new(time.Second)}
	return job
}

// eachHasItsOwn waits until the stick of each port receives what its own job writes. It fails if a stick has received
// anything from the other job since it was plugged in.
func (h *host) eachHasItsOwn() {
	h.t.Helper()
	for i := range 2 {
		testsupport.Within(h.t, 5*time.Minute, func() error {
			got := h.run(nil, "cat", fmt.Sprint("/run/usb-twin", i))
			if strings.Count(got, fmt.Sprint("job", i)) < 3 || strings.Contains(got, fmt.Sprint("job", 1-i)) {
				return fmt.Errorf("the stick in port %d received %q", i, got)
			}
			return nil
		})
	}
}

func TestReboot_IdenticalSticksStayWithTheirJobs(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	t.Parallel() // most of it is waiting
	h := newHost(t)
	h.boot()
	c := h.runAgent(map[string]agent.Plugin{
		"exec-lite": {Config: `state_dir = "${state_dir}"`}, "usb": {Config: `device "twin" { id = "1d6b:0108" }`},
	})
	h.plug(0, 1)
	ids := nomadtest.Offers(t, c, "twin", 2)
	for i, id := range ids {
		_, _, err := c.Jobs().Register(writer(fmt.Sprint("job", i), id), nil)
		must.NoError(t, err)
	}
	h.eachHasItsOwn()
	h.cutPower()

	h.boot()
	h.plug(1, 0) // each twin gets the other's tty number
	c = h.startAgent()
	h.eachHasItsOwn()
	test.SliceEqOp(t, ids, nomadtest.Offers(t, c, "twin", 2), test.Sprint("the IDs after the reboot"))
	for i := range ids {
		job := fmt.Sprint("job", i)
		nomadtest.Becomes(t, c, job, api.AllocClientStatusRunning) // the server reports the start with a delay
		test.SliceLen(t, 1, nomadtest.Allocs(t, c, job, 1), test.Sprint("want only the old allocation"))
	}
	h.run(nil, h.ctl, "close", agentDir)
}
