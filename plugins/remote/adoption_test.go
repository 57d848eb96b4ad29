// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"
)

// adoption is the attempt of one of the racing nodes to start a task, and its result.
type adoption struct {
	node *core.Driver
	task *drivers.TaskConfig
	err  error
}

// A node with 50 tasks is lost. Three other nodes start each task at the same time, and the API gives no information:
// exactly one of them must take over the running process.
func TestStart_OnlyOneOfThreeNodesAdoptsATask(t *testing.T) {
	testsupport.Long(t, "a node waits a minute for another node's task")
	server := sshdtest.Start(t)
	dir, mark := newDir(t), newMark(t)
	var purged atomic.Bool
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !purged.Load():
			http.Error(w, "No cluster leader", http.StatusInternalServerError)
		case strings.HasPrefix(r.URL.Path, "/v1/job/"):
			http.Error(w, "job not found", http.StatusNotFound)
		default:
			http.Error(w, "alloc not found", http.StatusNotFound)
		}
	}))
	t.Cleanup(api.Close)
	newNode := func() *core.Driver { return newPlugin(t, server.Endpoint("box", dir, server.Port), api.URL) }
	of := func(job int) *drivers.TaskConfig {
		options := map[string]any{"command": "sleep", "args": []any{mark}}
		return newTask(t, fmt.Sprintf("job-%d", job), options)
	}

	const jobs, nodes = 50, 3
	lost := newNode()
	for job := range jobs {
		_, _, err := lost.StartTask(of(job))
		must.NoError(t, err)
	}
	testsupport.WaitSleepers(t, mark, jobs)
	pids := testsupport.Sleepers(mark)
	must.NoError(t, lost.Close())

	var raced [jobs][nodes]adoption
	var all sync.WaitGroup
	for n := range nodes {
		node := newNode()
		for job := range jobs {
			a := &raced[job][n]
			*a = adoption{node: node, task: of(job)}
			all.Go(func() { _, _, a.err = a.node.StartTask(a.task) })
		}
	}
	all.Wait()
	test.Eq(t, pids, testsupport.Sleepers(mark), test.Sprint("the processes"))
	owners := map[string]string{} // the owner of each run, by the run's key
	for _, file := range (&node{host: dir}).records(t) {
		text, err := os.ReadFile(file)
		must.NoError(t, err)
		var record struct {
			Key   string
			Owner struct {
				AllocID string `json:"alloc_id"`
			}
		}
		must.NoError(t, json.Unmarshal(text, &record))
		owners[record.Key] = record.Owner.AllocID
	}
	must.MapLen(t, jobs, owners)
	winners := [nodes]int{}
	purged.Store(true)
	for job := range jobs {
		var won []adoption
		for n, a := range raced[job] {
			if a.err == nil {
				won = append(won, a)
				winners[n]++
			}
		}
		must.SliceLen(t, 1, won, must.Sprintf("job %d: %v", job, raced[job]))
		winner := won[0]
		key := fmt.Sprintf(`["global","default","job-%d","group","0","main",""]`, job)
		test.Eq(t, winner.task.AllocID, owners[key])
		for _, a := range raced[job] {
			if a != winner {
				test.ErrorContains(t, a.err, "gave up waiting for allocation "+winner.task.AllocID)
			}
		}
		test.NoError(t, winner.node.DestroyTask(winner.task.ID, true))
	}
	t.Logf("tasks per node: %v", winners)
	must.SliceEmpty(t, testsupport.Sleepers(mark))
}
