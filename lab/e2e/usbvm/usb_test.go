// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbvm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/e2e/nomadtest"
)

// terminal waits for the tty of the stick in this USB port of the VM. The stick must have only one.
func terminal(t *testing.T, port int) (name string) {
	t.Helper()
	testsupport.Within(t, time.Minute, func() error {
		found, err := filepath.Glob(fmt.Sprintf("/sys/devices/platform/dummy_hcd.%d/usb*/*/*/tty/*", port))
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("port %d has the terminals %q", port, found)
		}
		if err == nil {
			name = filepath.Base(found[0])
			_, err = os.Stat(filepath.Join("/dev", name))
		}
		return err
	})
	return name
}

func TestUSB_UnprivilegedTaskWritesToDevice(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	t.Parallel()
	n := shared(t)
	s := newStick(t, "written", 1, sticks["written"])
	s.plug(t)
	nomadtest.Offers(t, n.Client(), "written", 1)
	for _, driver := range []string{"exec-lite", "exec"} {
		t.Run(driver, func(t *testing.T) {
			word := "a word of " + driver
			got := n.prints(t, spec{driver: driver, device: "written",
				script: `id -un; echo "$USB_WRITTEN_ID $USB_WRITTEN_TTY"; echo "` + word + `" >$USB_WRITTEN_TTY; sleep 0.2`})
			test.Eq(t, "nobody\n"+id("written")+" /dev/written/tty\n", got)
			s.hears(t, word)
		})
	}
}

func TestUSB_LibusbProgramFindsOnlyItsDevice(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	t.Parallel()
	n := shared(t)
	newStick(t, "key", 2, sticks["key"]).plug(t)
	nomadtest.Offers(t, n.Client(), "key", 1)
	for _, driver := range []string{"exec-lite", "exec"} {
		t.Run(driver, func(t *testing.T) {
			// lsusb -v opens the device, and reads its strings
			got := n.prints(t, spec{driver: driver, device: "key", script: `lsusb; lsusb -v 2>&1 | head -n 200`})
			list, details, _ := strings.Cut(got, "\n")
			must.StrContains(t, list, "1d6b:0104", must.Sprintf("lsusb finds\n%s", got))
			test.Eq(t, 1, strings.Count("\n"+details, "\nBus "), test.Sprintf("lsusb finds\n%s", got))
			test.StrContains(t, details, "KEY1", test.Sprintf("no serial number of its device in\n%s", got))
		})
	}
}

// Two sticks are unplugged, and plugged into each other's port, so each gets the other's tty number. Tasks that open
// their stick again and again never write to the other one.
func TestUSB_SwappedDevicesStayWithTheirTasks(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	n := shared(t) // not parallel: other sticks would take tty numbers
	other := sticks["swapped"]
	other.Serial = "S2"
	two := []*stick{newStick(t, "swapped", 9, sticks["swapped"]), newStick(t, "swapped", 10, other)}
	ids := []string{id("swapped"), "1d6b:0109:S2"}
	node := func(id string) string { // the device node that the plugin makes for the task
		return filepath.Join("/dev/nomad-usb", strings.ReplaceAll(id, ":", "-"), "tty")
	}
	for _, s := range two {
		s.plug(t)
		terminal(t, s.port)
	}
	nomadtest.Offers(t, n.Client(), "swapped", 2)
	dir, err := os.MkdirTemp("/tmp", "swapped")
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, os.RemoveAll(dir)) })
	must.NoError(t, os.Chmod(dir, 0o777)) // the tasks run as nobody
	var failures []string                 // files with the number of times that a task failed to open its stick
	for i, id := range ids {
		word := fmt.Sprintf("for-%d", i+1)
		failures = append(failures, filepath.Join(dir, word))
		// without a pause, so the task writes to any stick that it can open
		script := `echo started; n=0; while :; do (echo ` + word +
			` >$USB_SWAPPED_TTY) 2>/dev/null || { n=$((n+1)); echo $n >` + failures[i] + `; }; done`
		n.submit(t, spec{device: "swapped", id: id, script: script}, api.AllocClientStatusRunning)
		two[i].hearsAnew(t, word)
	}
	swaps := 0
	for range 4 {
		before := []string{terminal(t, two[0].port), terminal(t, two[1].port)}
		for i, s := range two {
			must.True(t, testsupport.Exists(node(ids[i])))
			s.unplug(t)
		}
		// wait until the plugin has removed the nodes of the unplugged sticks, which takes time on a busy machine: a task
		// could use such a node to open the stick that gets the same number (see the plugin's page)
		for _, id := range ids {
			testsupport.Eventually(t, "the node of "+id+" is removed", func() bool { return !testsupport.Exists(node(id)) })
		}
		for _, file := range failures { // wait for the end of open calls that still found the node
			before, _ := os.ReadFile(file)
			testsupport.Eventually(t, "the task tries again", func() bool {
				now, err := os.ReadFile(file)
				return err == nil && len(now) > 0 && !bytes.Equal(before, now)
			})
		}
		two[0].port, two[1].port = two[1].port, two[0].port
		for _, i := range []int{1, 0} { // S2 is plugged in first, and gets the number of S1
			two[i].plug(t)
			if terminal(t, two[i].port) == before[1-i] {
				swaps++
			}
			// wait for bytes that a task has written to the wrong stick before the plugin's scan: they arrive within 20 ms
			time.Sleep(20 * time.Millisecond)
		}
		for i := range two {
			two[i].hearsAnew(t, fmt.Sprintf("for-%d", i+1))
		}
	}
	test.NotEq(t, 0, swaps, test.Sprint("no stick got the other's number: the test showed nothing"))
	for i, s := range two {
		if strings.Contains(s.heard(), fmt.Sprintf("for-%d", 2-i)) {
			t.Errorf("stick %s received bytes for the other", ids[i])
		}
	}
}
