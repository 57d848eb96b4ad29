package driver

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestStartTask_ReportsMissingCgroups(t *testing.T) {
	a := start(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events, err := a.TaskEvents(ctx)
	must(t, err)
	cfg := a.shell("exec sleep 1000", "")
	cfg.Resources.LinuxResources.CpusetCgroupPath = "" // as of an agent that is not root
	a.run(cfg)
	_, err = a.WaitTask(ctx, cfg.ID)
	must(t, err)
	select {
	case e := <-events:
		if e.TaskID != cfg.ID || !strings.HasPrefix(e.Message, "Limits are not enforced: ") || len(e.Message) < 40 {
			t.Errorf("got %+v", e)
		}
	case <-time.After(time.Minute):
		t.Error("no event")
	}
	a.destroy(cfg.ID)
}
