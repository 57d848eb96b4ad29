// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

var cloneCommand = command{
	name: "clone", help: "print the specification of a new volume with the content of a snapshot",
	usage: "VOLUME@SNAPSHOT NAME", least: 2, most: 2,
	about: `A volume is Nomad's, so Nomad makes the clone:

    nomad-device-dataset clone data@before data-copy | nomad volume create -

The specification has the snapshot, this node, and the capacity of the volume.`,
	options: func(*flag.FlagSet) func(context.Context, *session, []string) error {
		return func(ctx context.Context, s *session, args []string) error {
			volume, snapshot := splitAt(args[0])
			if snapshot == "" {
				return errors.New("usage: clone VOLUME@SNAPSHOT NAME")
			}
			if !volumeName.MatchString(args[1]) {
				return fmt.Errorf("%q can't be the name of a volume: use letters, digits, -, _ and .", args[1])
			}
			v, err := s.volume(ctx, volume)
			if err != nil {
				return err
			}
			if _, _, err := v.snapshotOf(ctx, snapshot); err != nil {
				return err
			}
			if !slices.Contains(v.Allow, "clone_from") {
				return fmt.Errorf("class %q does not allow the parameter clone_from: add it to \"allow\" in %s", v.label, s.file)
			}
			v.Tags = maps.Clone(v.Tags)
			from := v.id() + "@" + snapshot
			v.Tags[engine.Volume] = args[1]
			return s.specify(ctx, v, map[string]string{"clone_from": from})
		}
	},
}

var volumeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// specify prints the specification with which Nomad makes a volume of what is in f.
func (s *session) specify(ctx context.Context, f found, parameters map[string]string) error {
	parameters["class"] = f.label
	node := "# node_id = \"…\" # this node's, as \"nomad node status -self\" shows it\n"
	if id := s.node(ctx, f); id != "" {
		node = fmt.Sprintf("node_id   = %s\n", quote(id))
	}
	_, err := fmt.Fprintf(s.out, `name      = %s
type      = "host"
plugin_id = "dataset"
namespace = %s
%s
capacity_min = "%d"
capacity_max = "%d"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

parameters {
`, quote(f.Tags[engine.Volume]), quote(f.Tags[engine.Namespace]), node, f.Limits.Data, f.Limits.Data)
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		if err == nil {
			_, err = fmt.Fprintf(s.out, "  %s = %s\n", name, quote(parameters[name]))
		}
	}
	if err == nil {
		_, err = fmt.Fprintln(s.out, "}")
	}
	return err
}

// node is the id of this node for Nomad, or empty: a volume that it has knows it, or the agent.
func (s *session) node(ctx context.Context, f found) string {
	if id := f.Tags[engine.Node]; id != "" {
		return id
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	client, err := api.NewClient(api.DefaultConfig())
	if err != nil {
		return ""
	}
	defer client.Close()
	var self api.AgentSelf
	// without an answer it is empty
	_, _ = client.Raw().Query("/v1/agent/self", &self, (&api.QueryOptions{}).WithContext(ctx))
	return self.Stats["client"]["node_id"]
}

// quote is a string in HCL, where "${" would begin an expression.
func quote(text string) string {
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(strconv.Quote(text))
}
