// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// hookFailed is a type that the API has no name for (nomad/structs: TaskHookFailed).
const hookFailed = "Task hook failed"

// trouble are the types of events that explain why a task does not run.
var trouble = []string{
	api.TaskDriverFailure, api.TaskSetupFailure, api.TaskFailedValidation, api.TaskArtifactDownloadFailed, hookFailed,
}

// events prints a task's failures and its driver's messages as they happen. A start or a restart can take a minute,
// during which a silent lab would look stuck.
func (r *jobRun) events(a *api.Allocation, name string, s *api.TaskState) {
	key := a.ID + "/" + name
	for _, e := range s.Events[min(r.shown[key], len(s.Events)):] {
		mark := "! "
		switch {
		case e.Type == api.TaskDriverMessage:
			mark = "- "
			if !time.Unix(0, e.Time).Before(s.StartedAt) { // those before a start are of its preparation
				r.said[name] = message(e)
			}
		case slices.Contains(trouble, e.Type), e.Type == api.TaskRestarting, e.FailsTask && e.Type != api.TaskNotRestarting:
		case e.Type == api.TaskTerminated && (e.ExitCode != 0 || e.Signal != 0):
		default:
			continue
		}
		text := message(e)
		if e.Type != api.TaskDriverMessage {
			text = e.Type + ": " + text
			r.why, r.task = "task "+name+": "+text, name
		}
		r.out.Print("", term.Wrap(mark+name+" | "+text, term.Columns(r.lab.out), "    "))
	}
	r.shown[key] = len(s.Events)
}

// pending prints the last event of each task that has not started, and returns whether there is one.
func (r *jobRun) pending(allocs []*api.Allocation) (some bool) {
	for _, a := range allocs {
		for name, s := range a.TaskStates {
			if s.State != "pending" || len(s.Events) == 0 {
				continue
			}
			last := s.Events[len(s.Events)-1]
			r.out.Print("", term.Wrap("... "+name+" | "+last.Type+": "+message(last), term.Columns(r.lab.out), "    "))
			some = true
		}
	}
	return some
}

func message(e *api.TaskEvent) string { return nomad.Plain(e.DisplayMessage) }

// failure is the error of a job of which a task failed: the last event that explains it, and the driver's last message.
func (r *jobRun) failure(allocs []*api.Allocation) error {
	why := r.why
	for _, a := range allocs {
		if why == "" && a.ClientDescription != "" {
			why = fmt.Sprintf("%s: %s", a.ClientStatus, nomad.Plain(a.ClientDescription))
		}
	}
	if said := r.said[r.task]; said != "" && !strings.Contains(why, said) {
		why += ": " + said
	}
	return fmt.Errorf("job %s failed: %s", *r.job.ID, why)
}
