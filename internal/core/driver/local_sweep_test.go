package driver

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/internal/core/task"
)

func TestSweep_RemovesAbandonedTasks(t *testing.T) {
	a := start(t, nil)
	given, known := a.shell("exit 3", ""), a.shell("exit 3", "")
	running, unclaimed := a.shell("exec sleep 1000", ""), a.shell("exec sleep 1000", "")
	a.run(given)
	a.wait(given.ID)
	a.restart() // the plugin was killed, and DestroyTask is not called any more
	a.run(known)
	a.wait(known.ID)
	a.run(running)
	_, err := a.driver.WaitTask(t.Context(), running.ID)
	must(t, err)
	a.run(unclaimed) // the agent was killed, and its job was stopped
	kept := func(id string) bool {
		return isThere(task.Store{Dir: filepath.Join(a.state, "test-driver", a.node)}.TaskDir(id))
	}
	sweep := func() {
		a.driver.local.swept = time.Time{}
		_, err := a.driver.probe(t.Context())
		must(t, err)
	}
	sweep()
	if !kept(given.ID) || !kept(unclaimed.ID) {
		t.Error("one went while its allocation was there")
	}
	for _, dir := range []string{given.AllocDir, known.AllocDir, running.AllocDir, unclaimed.AllocDir} {
		must(t, os.Rename(dir, dir+".gone"))
		defer os.Rename(dir+".gone", dir)
	}
	sweep()
	if kept(given.ID) || kept(unclaimed.ID) {
		t.Error("one stays without its allocation")
	}
	if !kept(known.ID) || !kept(running.ID) {
		t.Error("a task that is known went")
	}
	if got := a.known(); len(got) != 2 {
		t.Errorf("the driver knows %q", got)
	}
	a.destroy(known.ID)
	a.destroy(running.ID)
}
