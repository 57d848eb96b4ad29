// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

// listed is an endpoint as "nomad-driver-remote list -json" prints it.
type listed struct {
	Endpoint string
	Problem  string
	Tasks    []struct {
		Key struct {
			Job, Group, Task string
			Index            int
		}
		State string
		Epoch int
		Lease time.Duration
		Owner struct{ Alloc, Node string }
	}
}

// remotes prints the endpoints, and the tasks on them with their owners, as the plugin sees them.
func (l *Lab) remotes(ctx context.Context, a agent.Agent) error {
	if remote(a.Info().Labels[remoteLabel]) != remoteSim {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	plugin := filepath.Join(a.PluginDir(), remotePlugin)
	cmd := exec.CommandContext(ctx, plugin, "list", "-json", "-config", filepath.Join(l.dir, "agent.hcl"))
	var why bytes.Buffer
	cmd.Stderr = &why
	out, err := cmd.Output()
	var all []listed
	if err == nil {
		err = json.Unmarshal(out, &all)
	}
	if err != nil {
		return fmt.Errorf("failed to list the remote tasks: %w: %s", err, strings.TrimSpace(why.String()))
	}
	nodes, _, err := a.Client().Nodes().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("failed to list the nodes: %w", err)
	}
	names := map[string]string{}
	for _, n := range nodes {
		names[n.ID] = n.Name
	}
	l.say("")
	return term.Table(l.out, remoteRows(all, names)...)
}

// remoteRows are those of a table; names are those of the nodes.
func remoteRows(all []listed, names map[string]string) [][]string {
	rows := [][]string{{"ENDPOINT", "REMOTE TASK", "STATE", "OWNER", "EPOCH", "LEASE"}}
	for _, e := range all {
		if e.Problem != "" {
			rows = append(rows, []string{e.Endpoint, "can't be used: " + e.Problem, "", "", "", ""})
		} else if len(e.Tasks) == 0 {
			rows = append(rows, []string{e.Endpoint, "none", "", "", "", ""})
		}
		for _, t := range e.Tasks {
			lease := ""
			switch {
			case t.State == "released" || t.State == "exited":
			case t.Lease < 0:
				lease = "ended " + term.Short(-t.Lease) + " ago"
			default:
				lease = term.Short(t.Lease)
			}
			rows = append(rows, []string{
				e.Endpoint, fmt.Sprintf("%s.%s[%d]/%s", t.Key.Job, t.Key.Group, t.Key.Index, t.Key.Task), t.State,
				fmt.Sprintf("%s, allocation %.8s", cmp.Or(names[t.Owner.Node], t.Owner.Node), t.Owner.Alloc),
				fmt.Sprint(t.Epoch), lease,
			})
		}
	}
	return rows
}
