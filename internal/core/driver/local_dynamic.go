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
	return name, nil
}

// isDynamic reports whether a user, as in a job, has the name of one that Nomad gives to a task.
func isDynamic(user string) bool {
	name, _, _ := strings.Cut(user, ":")
	id, found := strings.CutPrefix(name, account.DynamicPrefix)
	_, err := account.ParseDecimal(id)
	return found && err == nil
}

// checkUser refuses the user of another task if it is the dynamic one of either, whatever the jobs call it. The caller
// holds mu.
func (l *local) checkUser(t *localTask) error {
	own := t.current()
	if own.Command.User == nil {
		return nil
	}
	uid := own.Command.User.UID
	for _, other := range l.tasks {
		st := other.current()
		if u := st.Command.User; u != nil && u.UID == uid && (t.dynamic || other.dynamic) &&
			runOf(st.AllocID, st.Task) != runOf(own.AllocID, own.Task) {
			return structs.NewRecoverableError(fmt.Errorf("dynamic user %s%d is still the one of task %q in allocation %s",
				account.DynamicPrefix, uid, st.Task, st.AllocID), true)
		}
	}
	return nil
}

// rememberUser is called for a task that the driver recovers.
func (l *local) rememberUser(cfg *drivers.TaskConfig, t *localTask) {
	u := t.state.Command.User
	l.mu.Lock()
	defer l.mu.Unlock()
	if u == nil || !l.options.DynamicUsers || cfg.User != "" && !strings.HasPrefix(cfg.User, account.DynamicPrefix) {
		return
	}
	t.dynamic = true
	l.users[runOf(cfg.AllocID, cfg.Name)] = account.DynamicPrefix + strconv.FormatUint(uint64(u.UID), 10)
}
