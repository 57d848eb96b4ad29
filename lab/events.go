// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"fmt"
	"slices"

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
		text := nomad.Plain(e.DisplayMessage)
		if e.Type != api.TaskDriverMessage {
			text = e.Type + ": " + text
		}
		r.out.Print("", term.Wrap(mark+name+" | "+text, term.Columns(r.lab.out), "    "))
	}
	r.shown[key] = len(s.Events)
}

// failure is the error of a job of which a task failed, in Nomad's words. The events that explain it are printed.
func (r *jobRun) failure(allocs []*api.Allocation) error {
	var why []string
	for _, a := range allocs {
		if a.ClientStatus == api.AllocClientStatusFailed || a.ClientStatus == api.AllocClientStatusLost {
			why = append(why, nomad.Plain(a.ClientDescription))
		}
	}
	return fmt.Errorf("job %s failed: %s", *r.job.ID, joined(why))
}
