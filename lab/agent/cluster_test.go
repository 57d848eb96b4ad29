// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

// cluster starts two clients of a server with access control, and closes them with the test.
func cluster(t *testing.T) *agent.Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c, err := agent.RunCluster(ctx, agent.ClusterOptions{
		Dir: filepath.Join(t.TempDir(), "c"), Quick: true, Token: "5a3e6c1a-5a0e-4f4e-9f6e-0c9d2b1a7e01",
		Server:  agent.Options{ServerOnly: true, Name: "server", Progress: t.Logf},
		Clients: make([]agent.Options, 2),
	})
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, c.Close(context.Background())) })
	return c
}

func nodeStatus(t *testing.T, c *agent.Cluster, client int) string {
	t.Helper()
	n, _, err := c.Server.Client().Nodes().Info(agent.NodeID(c.Clients[client]), nil)
	must.NoError(t, err)
	return n.Status
}

func TestCluster_LosesDrainsAndFreezes(t *testing.T) {
	t.Parallel()
	c, ctx := cluster(t), t.Context()
	nodes, _, err := c.Server.Client().Nodes().List(nil)
	must.NoError(t, err)
	must.SliceLen(t, 2, nodes, must.Sprint("a server alone is no node"))
	anonymous, err := api.NewClient(&api.Config{Address: c.Server.Address()})
	must.NoError(t, err)
	anonymous.SetSecretID("")
	_, _, err = anonymous.Nodes().List(nil)
	must.ErrorContains(t, err, "403")

	on := func(client int) *api.Allocation {
		t.Helper()
		var alloc *api.Allocation
		testsupport.Eventually(t, "the job runs on "+c.Clients[client].Info().Dir, func() bool {
			list, _, err := c.Server.Client().Jobs().Allocations("s", false, nil)
			for _, a := range list {
				if a.NodeID == agent.NodeID(c.Clients[client]) && a.ClientStatus == "running" && a.DesiredStatus == "run" {
					alloc, _, err = c.Server.Client().Allocations().Info(a.ID, nil)
				}
			}
			return err == nil && alloc != nil
		})
		return alloc
	}
	must.NoError(t, agent.Drain(ctx, c.Server.Client(), agent.NodeID(c.Clients[1]), 0))
	_, _, err = c.Server.Client().Jobs().Register(sleeper("s"), nil)
	must.NoError(t, err)
	on(0)
	must.NoError(t, agent.Undrain(ctx, c.Server.Client(), agent.NodeID(c.Clients[1])))
	must.NoError(t, agent.Drain(ctx, c.Server.Client(), agent.NodeID(c.Clients[0]), -1))
	on(1)
	must.NoError(t, agent.Undrain(ctx, c.Server.Client(), agent.NodeID(c.Clients[0])))

	must.NoError(t, c.Clients[1].Kill(ctx))
	start := time.Now()
	testsupport.Eventually(t, "the node is down", func() bool { return nodeStatus(t, c, 1) == api.NodeStatusDown })
	t.Logf("down %.1f s after a kill", time.Since(start).Seconds())
	on(0)
	must.NoError(t, c.Clients[1].Start(ctx))
	_, err = agent.WaitHealthy(ctx, c.Clients[1])
	must.NoError(t, err)

	must.NoError(t, c.Freeze())
	asked, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _, err = c.Clients[0].Client().Jobs().List((&api.QueryOptions{}).WithContext(asked))
	must.ErrorIs(t, err, context.DeadlineExceeded)
	must.NoError(t, c.Thaw())
	testsupport.Eventually(t, "the server answers", func() bool {
		_, _, err := c.Clients[0].Client().Jobs().List(nil)
		return err == nil
	})
}

func TestCluster_CloseLeavesNothingOfAnyState(t *testing.T) {
	t.Parallel()
	c, ctx := cluster(t), t.Context()
	dir := filepath.Dir(c.Server.Info().Dir)
	job := sleeper("s")
	mark := testsupport.Mark()
	job.TaskGroups[0].Count = new(2)
	job.TaskGroups[0].Tasks[0].SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", "exec sleep " + mark})
	job.TaskGroups[0].Constrain(api.NewConstraint("", api.ConstraintDistinctHosts, "true"))
	_, _, err := c.Server.Client().Jobs().Register(job, nil)
	must.NoError(t, err)
	testsupport.Eventually(t, "both run", func() bool {
		list, _, err := c.Server.Client().Jobs().Allocations("s", true, nil)
		return err == nil && len(list) == 2 && list[0].ClientStatus == "running" && list[1].ClientStatus == "running"
	})
	testsupport.WaitSleepers(t, mark, 2)
	before := testsupport.Sleepers(mark)
	again, err := agent.OpenCluster(ctx, dir)
	must.NoError(t, err)
	must.SliceLen(t, 2, again.Clients)
	left, err := again.Leftovers(ctx)
	must.NoError(t, err)
	must.True(t, len(left) > 5, must.Sprintf("a running cluster shows %q", left))

	must.NoError(t, again.Clients[0].Close(ctx), must.Sprint("one client of two"))
	list, _, err := c.Server.Client().Jobs().Allocations("s", true, nil)
	must.NoError(t, err)
	for _, a := range list {
		test.Eq(t, "run", a.DesiredStatus, test.Sprint("a client's end stopped the job"))
	}
	now := testsupport.Sleepers(mark)
	must.SliceLen(t, 1, now, must.Sprint("a client's end ended another's task"))
	must.SliceContains(t, before, now[0])
	must.NoError(t, c.Clients[1].Kill(ctx))
	must.NoError(t, c.Freeze())
	must.NoError(t, c.Close(ctx))
	_, err = os.Stat(dir)
	must.ErrorIs(t, err, os.ErrNotExist)
	must.NoError(t, c.Close(ctx), must.Sprint("the second close"))
	_, err = agent.OpenCluster(ctx, dir)
	must.ErrorIs(t, err, agent.ErrNone)
}
