package usbvm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// quietEnv is how long the node is watched, such as 10m; the plugin looks by itself
// every half minute.
const quietEnv = "USBVM_QUIET"

func TestUSB_NodeIsNotUpdatedWithoutChange(t *testing.T) {
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
	before := n.changes(t)
	if before == 0 {
		t.Fatal("the agent's log does not tell of the stick: the test proves nothing")
	}
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
	if after := n.changes(t); after != before {
		t.Errorf("the node was updated %d times", after-before)
	}
	t.Logf("no update of the node in %v, though the plugin was told to look %d times", long, looks)
}

// changes are those of the node's devices so far, which Nomad's client logs. The node's index
// would not tell: a heartbeat that an overloaded machine misses changes it, too.
func (n *node) changes(t *testing.T) int {
	t.Helper()
	var log strings.Builder
	if err := n.Logs(t.Context(), &log, false); err != nil {
		t.Fatal(err)
	}
	return strings.Count(log.String(), "new devices detected")
}
