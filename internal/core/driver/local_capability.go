// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// capabilities returns the capabilities to add and to drop for a task. A nil user means the agent's own user.
func capabilities(p PluginOptions, o TaskOptions, user *task.User) (c task.Capabilities, err error) {
	allowed, err := task.ParseCapabilities("allow_caps", p.AllowCaps)
	if err != nil {
		return c, err
	}
	drop, err := task.ParseCapabilities("cap_drop", o.CapDrop)
	if err != nil {
		return c, err
	}
	add, err := task.ParseCapabilities("cap_add", o.CapAdd)
	if err != nil {
		return c, err
	}
	if add&^allowed != 0 {
		return c, fmt.Errorf("cap_add: this node does not allow %s (allow_caps)", task.CapabilityNames(add&^allowed))
	}
	c.Drop = drop &^ add
	u, err := orAgents(user)
	if err == nil && u.UID != 0 { // root has every capability that is not dropped
		c.Add = add
	}
	return c, err
}

// mayHave returns the capabilities that a task can have, not counting those from set-user-ID programs.
func mayHave(c task.Capabilities, isRoot bool) uint64 {
	if isRoot {
		return task.AllCapabilities() &^ c.Drop
	}
	return c.Add
}
