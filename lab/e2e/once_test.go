// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// burst is the number of tasks that are being started at a kill.
const burst = 20

// onceKill kills processes in the middle of a burst.
type onceKill struct {
	name string
	kill func(t *testing.T, n *node)

	// loses means that the plugin or the supervisor ends with the agent or in the middle of a start. It may have been the
	// only one to know an exit, so "lost" is true, too. An agent that is stopped kills its plugin.
	loses bool
}

var (
	agentKilled  = onceKill{name: "agent killed", kill: func(t *testing.T, n *node) { kill(t, n); n.restart(t) }}
	agentStopped = onceKill{name: "agent stopped", loses: true,
		kill: func(t *testing.T, n *node) { stop(t, n); n.restart(t) }}
	supervisorEnded = onceKill{name: "supervisor killed", loses: true,
		kill: func(t *testing.T, n *node) { n.killAll(n.isSupervisor) }}
	bothKilled = onceKill{name: "agent and plugin killed", loses: true, kill: func(t *testing.T, n *node) {
		kill(t, n)
		n.killAll(n.isPlugin)
		n.restart(t)
	}}
	onceKills = []onceKill{
		agentKilled, agentKilled, supervisorEnded, agentKilled, agentStopped,
		agentKilled, agentKilled, agentKilled, bothKilled, agentKilled,
	}
)

// killAll kills all processes of a kind.
func (n *node) killAll(is func(proc) bool) {
	for _, p := range n.find(is) {
		_ = unix.Kill(p.pid, unix.SIGKILL)
	}
}

// onceJob returns the job of a burst. Each task first adds a line to its own file, and ends with its own code. Half of
// the tasks have a token in their environment, half a template, which a restarted agent renders again.
func onceJob(t *testing.T, dir string) *api.Job {
	j := job(t, sh(`echo x >> `+dir+`/$NOMAD_GROUP_NAME-$NOMAD_ALLOC_INDEX
		echo "$NOMAD_TOKEN$MADE_AT" | cksum; sleep 0.$((NOMAD_ALLOC_INDEX * 9)); exit $((NOMAD_ALLOC_INDEX % 5))`),
		small(burst/2))
	token := j.TaskGroups[0]
	token.Name = new("token")
	token.Tasks[0].Identity = &api.WorkloadIdentity{Env: true}
	template := api.NewTaskGroup("template", burst/2)
	template.EphemeralDisk, template.RestartPolicy, template.ReschedulePolicy = token.EphemeralDisk, token.RestartPolicy,
		token.ReschedulePolicy
	other := *token.Tasks[0]
	other.Identity = nil
	other.Templates = []*api.Template{{
		EmbeddedTmpl: new(`MADE_AT={{ timestamp "unix" }}`), DestPath: new("secrets/made"), Envvars: new(true),
		ChangeMode: new("noop"),
	}}
	return j.AddTaskGroup(template.AddTask(&other))
}

func TestTask_RunsOnceThroughKills(t *testing.T) {
	testsupport.Long(t, "a table of faults on real agents")
	t.Parallel()
	n := newNode(t, nodeOptions{})
	for i, k := range onceKills {
		onceRound(t, n, i, k)
		must.False(t, t.Failed(), must.Sprintf("in round %d of %d: %s", i, len(onceKills), k.name))
	}
}

// onceRound runs one burst with one kill, after a random number of its tasks have begun.
func onceRound(t *testing.T, n *node, number int, k onceKill) {
	t.Helper()
	dir := filepath.Join(n.dir, fmt.Sprint("once", number))
	must.NoError(t, os.Mkdir(dir, 0o777))
	must.NoError(t, os.Chmod(dir, 0o777))
	begun := func() int { e, _ := os.ReadDir(dir); return len(e) }
	j := onceJob(t, dir)
	_, _, err := n.Client().Jobs().Register(j, nil)
	must.NoError(t, err)
	moment := rand.IntN(burst)
	testsupport.Within(t, 2*time.Minute, func() error {
		if now := begun(); now < moment {
			return fmt.Errorf("%d tasks have begun, want %d", now, moment)
		}
		return nil
	})
	time.Sleep(rand.N(60 * time.Millisecond)) // kill at any moment between two starts
	k.kill(t, n)

	var list []*api.AllocationListStub
	testsupport.Within(t, 3*time.Minute, func() (err error) {
		if list, _, err = n.Client().Jobs().Allocations(*j.ID, false, nil); err != nil {
			return err
		}
		if len(list) != burst {
			return fmt.Errorf("%d allocations, want %d", len(list), burst)
		}
		for _, s := range list {
			if st := s.TaskStates["main"]; st == nil || st.State != "dead" || s.ClientStatus != "complete" &&
				s.ClientStatus != "failed" {
				a := &alloc{n: n, id: s.ID, job: *j.ID}
				return fmt.Errorf("%s is %s: %s", s.Name, s.ClientStatus, a.story())
			}
		}
		return nil
	})
	for _, s := range list {
		a := &alloc{n: n, id: s.ID, job: *j.ID}
		index, _ := strconv.Atoi(strings.TrimSuffix(s.Name[strings.LastIndexByte(s.Name, '[')+1:], "]"))
		b, _ := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%s-%d", s.TaskGroup, index)))
		if string(b) != "x\n" {
			t.Errorf("%s at %d of %d: %s ran %d times: %s", k.name, moment, burst, s.Name, strings.Count(string(b), "x"),
				a.story())
		}
		if got := a.outcome(); got != fmt.Sprintf("exit %d", index%5) && (got != "lost" || !k.loses) {
			t.Errorf("%s at %d of %d: %s: got %q, want exit %d: %s", k.name, moment, burst, s.Name, got, index%5, a.story())
		}
		if out, err := a.read("stdout"); err != nil || strings.Count(out, "\n") != 1 {
			t.Errorf("%s at %d of %d: %s: output %q, %v", k.name, moment, burst, s.Name, out, err)
		}
	}
	test.NoError(t, testsupport.Poll(time.Minute, n.tasksLeft))
}
