// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"errors"
	"fmt"
	"slices"
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
		case slices.Contains(trouble, e.Type), e.Type == api.TaskRestarting, e.FailsTask && e.Type != api.TaskNotRestarting:
		case e.Type == api.TaskTerminated && (e.ExitCode != 0 || e.Signal != 0):
		default:
			continue
		}
		line := mark + name + " | "
		if e.Type != api.TaskDriverMessage {
			line += e.Type + ": "
		}
		r.out.Print("", term.Wrap(line+message(e), term.Columns(r.lab.out), "    "))
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

// failure prints the events of the tasks that failed, and returns the error.
func (r *jobRun) failure(allocs []*api.Allocation) error {
	why := "failed"
	for _, a := range allocs {
		for name, s := range a.TaskStates {
			if !s.Failed {
				continue
			}
			rows := [][]string{{"TIME", "EVENT", "MESSAGE"}}
			for _, e := range s.Events {
				rows = append(rows, []string{time.Unix(0, e.Time).Format(time.TimeOnly), e.Type, message(e)})
			}
			if text := reason(s.Events); text != "" {
				why = fmt.Sprintf("failed: task %s: %s", name, text)
			}
			r.lab.say("\nTask %s of allocation %.8s:", name, a.ID)
			if err := term.Table(r.lab.out, rows...); err != nil {
				return err
			}
		}
		if why == "failed" && a.ClientDescription != "" {
			why = fmt.Sprintf("%s: %s", a.ClientStatus, nomad.Plain(a.ClientDescription))
		}
	}
	return errors.New("job " + *r.job.ID + " " + why)
}

// reason is why a task failed: how its last run ended and, on a line of its own, the driver's message about it.
func reason(events []*api.TaskEvent) (why string) {
	said, started := "", false
	for _, e := range events {
		switch {
		case e.Type == api.TaskStarted, e.Type == api.TaskRestarting:
			said, started = "", e.Type == api.TaskStarted
		case e.Type == api.TaskDriverMessage && started:
			said = message(e)
		case e.Type == api.TaskTerminated && e.ExitCode == 0 && e.Signal == 0:
		case e.Type == api.TaskTerminated, slices.Contains(trouble, e.Type):
			why = message(e)
		case e.FailsTask && why == "":
			why = e.Type + ": " + message(e)
		}
	}
	if why != "" && said != "" {
		return why + "\n" + said
	}
	return why + said
}
