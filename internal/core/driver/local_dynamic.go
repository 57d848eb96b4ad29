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

	"github.com/outrider-dev/outrider/internal/core/account"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// With dynamic_users, Nomad gives a user to each task whose job names none
// (client/allocrunner/taskrunner/dynamic_users_hook.go). An agent that was restarted no longer knows these users: it
// names no user when such a task restarts, and may give the task's user to another task. So the driver remembers
// the users of the tasks that it recovers, and never runs two tasks as the same dynamic user.

// userOf returns the user of a task that is about to start, in the format of a job's user, or "" for the agent's own.
func (l *local) userOf(s *Start, storeDir string) (string, error) {
	name := s.Task.User
	if name == "" && l.settings.Load().options.DynamicUsers {
		name = l.knownUser(runOf(s.Task.AllocID, s.Task.Name), storeDir)
		if name == "" {
			return "", errors.New("the agent was restarted and no longer knows the task's dynamic user: " +
				"run `nomad alloc stop`, so that a new allocation gets a dynamic user")
		}
	}
	if name == "" && os.Geteuid() == 0 { // only root can run tasks as other users
		name = s.DefaultUser
	}
	return name, nil
}

// knownUser returns the dynamic user of a recovered task or, if the agent was killed before it knew of the task, the
// user in the task's state on disk. If neither is known, it returns an empty name.
func (l *local) knownUser(run, storeDir string) string {
	l.mu.Lock()
	name := l.users[run]
	l.mu.Unlock()
	if name != "" {
		return name
	}
	states, _ := task.Store{Dir: storeDir}.List() // skips tasks with an unreadable state
	for _, st := range states {
		if st.DynamicUser && runOf(st.AllocID, st.Task) == run {
			return dynamicName(st)
		}
	}
	return ""
}

// dynamicName returns Nomad's name for a task's dynamic user.
func dynamicName(st *task.State) string {
	return account.DynamicPrefix + strconv.FormatUint(uint64(st.Command.User.UID), 10)
}

// isDynamic reports whether a job's user, which may be "user:group", is named like a dynamic user of Nomad.
func isDynamic(user string) bool {
	name, _, _ := strings.Cut(user, ":")
	id, found := strings.CutPrefix(name, account.DynamicPrefix)
	_, err := account.ParseDecimal(id)
	return found && err == nil
}

// checkUser returns an error if another task has the same user id, and this id is a dynamic user of at least one of the
// two tasks. The caller holds mu.
func (l *local) checkUser(t *localTask) error {
	own := t.current()
	if own.Command.User == nil {
		return nil
	}
	uid := own.Command.User.UID
	for _, other := range l.tasks {
		st := other.current()
		if u := st.Command.User; u != nil && u.UID == uid && (own.DynamicUser || st.DynamicUser) &&
			runOf(st.AllocID, st.Task) != runOf(own.AllocID, own.Task) {
			return structs.NewRecoverableError(fmt.Errorf("dynamic user %s is still used by task %q in allocation %s",
				dynamicName(st), st.Task, st.AllocID), true)
		}
	}
	return nil
}

// rememberUser remembers the dynamic user of a task that the driver recovers.
func (l *local) rememberUser(t *localTask) {
	st := t.state
	if !st.DynamicUser {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users[runOf(st.AllocID, st.Task)] = dynamicName(st)
}
