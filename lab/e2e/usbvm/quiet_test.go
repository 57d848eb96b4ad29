package usbvm

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// quietEnv is how long the node is watched, such as 10m; the plugin looks by itself
// every half minute.
const quietEnv = "USBVM_QUIET"

func TestNodeIsNotUpdatedWithoutAChange(t *testing.T) {
	n := shared(t)
	long := 10 * time.Second
	if s := os.Getenv(quietEnv); s != "" {
		var err error
		if long, err = time.ParseDuration(s); err != nil {
			t.Fatalf("%s: %v", quietEnv, err)
		}
	}
	newStick(t, "cycled", 0).plug(t)
	n.offers(t, "cycled", 1)
	time.Sleep(time.Second) // the rest of what was registered with it
	before := n.changed(t)
	hubs, err := filepath.Glob("/sys/bus/usb/devices/usb*/uevent")
	if err != nil || len(hubs) == 0 {
		t.Fatalf("there is no USB hub: %v", err)
	}
	looks := 0
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Second) {
		// the kernel says that something has changed, and nothing has
		if err := os.WriteFile(hubs[0], []byte("change"), 0); err != nil {
			t.Fatal(err)
		}
		looks++
	}
	if after := n.changed(t); after != before {
		t.Errorf("the node was updated: its index was %d and is %d", before, after)
	}
	t.Logf("no update of the node in %v, though the plugin was told to look %d times", long, looks)
}

// changed is the index of the node's last change.
func (n *node) changed(t *testing.T) uint64 {
	t.Helper()
	stubs, _, err := n.Client().Nodes().List(nil)
	if err != nil || len(stubs) != 1 {
		t.Fatalf("%d nodes, %v", len(stubs), err)
	}
	return stubs[0].ModifyIndex
}
