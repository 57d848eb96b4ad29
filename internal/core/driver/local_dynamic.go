// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/internal/core/account"
)

// With dynamic_users, Nomad gives a user to each task whose job names none
// (client/allocrunner/taskrunner/dynamic_users_hook.go). An agent that was restarted no longer knows these users: it
// does not name a task's user again when the task restarts, and may give it to another task. So the driver remembers
// the users of the tasks that it recovers, and gives no user to two tasks.

// userOf returns the user of a task that is about to start, as in a job; empty is the agent's own.
func (l *local) userOf(s *Start) (string, error) {
	run := runOf(s.Task.AllocID, s.Task.Name)
	name := s.Task.User
	if name == "" && l.config().DynamicUsers {
		l.mu.Lock()
		name = l.users[run]
		l.mu.Unlock()
		if name == "" {
			return "", errors.New("the agent was restarted and no longer knows the task's dynamic user: " +
				"run `nomad alloc stop`, so that another allocation gets one")
		}
	}
	if name == "" && os.Geteuid() == 0 { // only root can run tasks as others
		name = s.DefaultUser
	}
	id, dynamic := strings.CutPrefix(name, account.DynamicPrefix)
	if !dynamic {
		return name, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.tasks {
		st := t.current()
		u := st.Command.User
		if u != nil && strconv.FormatUint(uint64(u.UID), 10) == id && runOf(st.AllocID, st.Task) != run {
			return "", structs.NewRecoverableError(fmt.Errorf("dynamic user %s is still the one of task %q in allocation %s",
				name, st.Task, st.AllocID), true)
		}
	}
	return name, nil
}

// rememberUser is called for a task that the driver recovers.
func (l *local) rememberUser(cfg *drivers.TaskConfig, t *localTask) {
	u := t.state.Command.User
	l.mu.Lock()
	defer l.mu.Unlock()
	if u == nil || !l.options.DynamicUsers || cfg.User != "" && !strings.HasPrefix(cfg.User, account.DynamicPrefix) {
		return
	}
	l.users[runOf(cfg.AllocID, cfg.Name)] = account.DynamicPrefix + strconv.FormatUint(uint64(u.UID), 10)
}
