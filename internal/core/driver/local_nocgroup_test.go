// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestStartTask_ReportsMissingCgroups(t *testing.T) {
	a := start(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events, err := a.TaskEvents(ctx)
	must.NoError(t, err)
	cfg := a.shell("exec sleep 1000", "")
	cfg.Resources.LinuxResources.CpusetCgroupPath = "" // as of an agent that is not root
	a.run(cfg)
	_, err = a.WaitTask(ctx, cfg.ID)
	must.NoError(t, err)
	select {
	case e := <-events:
		must.Eq(t, cfg.ID, e.TaskID, must.Sprintf("got %+v", e))
		must.StrHasPrefix(t, "Limits are not enforced: ", e.Message, must.Sprintf("got %+v", e))
		test.False(t, len(e.Message) < 40, test.Sprintf("got %+v", e))
	case <-time.After(time.Minute):
		t.Error("no event")
	}
	a.destroy(cfg.ID)
}
