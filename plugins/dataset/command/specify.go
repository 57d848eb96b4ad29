// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/plugins/dataset/engine"
)

var volumeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// specification is that of a new volume, as JSON.
type specification struct {
	Class     string `json:"class"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Node      string `json:"node_id,omitempty"`
	Capacity  int64  `json:"capacity"`
	Key       string `json:"adopt"` // the parameter with which the volume becomes the dataset
}

// specify prints the specification with which Nomad makes a volume of a dataset that waits for it.
func (s *session) specify(ctx context.Context, f found) error {
	v := specification{
		Class: f.label, Namespace: f.Tags[engine.Namespace], Name: f.Tags[engine.Volume], Node: s.node(ctx, f),
		Capacity: f.Limits.Data, Key: f.Tags[engine.Adopt],
	}
	return s.answer(v, v.write)
}

// write is the specification for "nomad volume create".
func (v specification) write(w io.Writer) {
	node := "# node_id = \"…\" # this node's, as \"nomad node status -self\" shows it\n"
	if v.Node != "" {
		node = fmt.Sprintf("node_id   = %s\n", quote(v.Node))
	}
	fmt.Fprintf(w, `name      = %s
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
  class = %s
  adopt = %s
}
`, quote(v.Name), quote(v.Namespace), node, v.Capacity, v.Capacity, quote(v.Class), quote(v.Key))
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
