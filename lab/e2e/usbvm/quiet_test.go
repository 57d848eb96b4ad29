// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package usbvm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestUSB_NodeIsNotUpdatedWithoutChange(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	n := shared(t)
	const long = 10 * time.Second
	newStick(t, "cycled", 0).plug(t)
	n.offers(t, "cycled", 1)
	before := n.changes(t)
	must.NotEq(t, 0, before, must.Sprint("the agent's log does not tell of the stick: the test proves nothing"))
	hubs, err := filepath.Glob("/sys/bus/usb/devices/usb*/uevent")
	must.NoError(t, err, must.Sprint("there is no USB hub"))
	must.SliceNotEmpty(t, hubs, must.Sprint("there is no USB hub"))
	looks := 0
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Second) {
		// the kernel says that something has changed, and nothing has
		must.NoError(t, os.WriteFile(hubs[0], []byte("change"), 0))
		looks++
	}
	after := n.changes(t)
	test.Eq(t, before, after, test.Sprintf("the node was updated %d times", after-before))
	t.Logf("no update of the node in %v, though the plugin was told to look %d times", long, looks)
}

// changes are those of the node's devices so far, which Nomad's client logs. The node's index
// would not tell: a heartbeat that an overloaded machine misses changes it, too.
func (n *node) changes(t *testing.T) int {
	t.Helper()
	log, err := n.Log()
	must.NoError(t, err)
	return strings.Count(log, "new devices detected")
}
