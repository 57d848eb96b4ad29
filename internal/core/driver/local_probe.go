// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"sync"

	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/landlock"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
)

// Probe is part of Prober.
func (l *local) Probe(ctx context.Context) (Node, error) {
	removed := l.sweep(ctx)
	set := l.settings.Load()
	if set.root != "" {
		if err := owned(set.root); err != nil {
			return Node{}, err
		}
	}
	support := cgroup.Detect("")
	root := os.Geteuid() == 0
	var missing []string
	if support.Missing != "" {
		missing = append(missing, support.Missing)
	}
	if !root {
		missing = append(missing, "the agent is not root, so tasks run as the agent's user")
	}
	options, abi := set.options, landlock.ABI()
	limit := unveilLimit(options, abi)
	switch {
	case limit != "" && options.Unveil == unveilStrict:
		return Node{}, errors.New("unveil = \"strict\" can't be used on this node: " + limit)
	case limit != "":
		missing = append(missing, limit)
	}
	return Node{Removed: removed, Missing: missing, Attributes: map[string]*pstructs.Attribute{
		"cgroup":          pstructs.NewStringAttribute(string(support.Mode)),
		"log_collection":  pstructs.NewStringAttribute(options.LogCollection),
		"pidfd_exit_info": pstructs.NewBoolAttribute(supportsPidfdExit()),
		"landlock_abi":    pstructs.NewIntAttribute(int64(abi), ""),
		"unveil":          pstructs.NewStringAttribute(options.Unveil),
		"root":            pstructs.NewBoolAttribute(root),
	}}, nil
}

// supportsPidfdExit is checked once: the kernel does not change while a process runs.
var supportsPidfdExit = sync.OnceValue(supervisor.SupportsPidfdExit)
