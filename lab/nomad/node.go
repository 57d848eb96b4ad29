// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Driver is a task driver as the node has fingerprinted it.
type Driver struct {
	Name        string
	Version     string // attribute driver.<name>.version, may be empty
	Detected    bool
	Healthy     bool
	Description string // the driver's message
}

// Health returns the driver's health in one word. "undetected" means that the plugin works but did not find its
// runtime, such as Python. "missing" means that the plugin failed: it did not even report a version.
func (d Driver) Health() string {
	switch {
	case d.Healthy:
		return "healthy"
	case d.Detected:
		return "unhealthy"
	case d.Version != "":
		return "undetected"
	}
	return "missing"
}

// ErrNotRegistered means that the client half of the agent has not registered since its start.
var ErrNotRegistered = errors.New("the node is not registered yet")

// Health returns the named drivers of a node, and an error if the node or one of them is not healthy. An undetected
// driver is not an error.
func Health(node *api.Node, drivers ...string) ([]Driver, error) {
	var got []Driver
	var bad []string
	for _, name := range drivers {
		d := Driver{Name: name, Version: node.Attributes["driver."+name+".version"]}
		if info := node.Drivers[name]; info != nil {
			d.Detected, d.Healthy, d.Description = info.Detected, info.Healthy, Plain(info.HealthDescription)
		}
		got = append(got, d)
		if health := d.Health(); health == "unhealthy" || health == "missing" {
			bad = append(bad, fmt.Sprintf("driver %s is %s: %s", name, health, d.Description))
		}
	}
	if node.Status != api.NodeStatusReady {
		return got, fmt.Errorf("the node is %s", node.Status)
	}
	if len(bad) > 0 {
		return got, errors.New(strings.Join(bad, "; "))
	}
	return got, nil
}

// ErrNoHostVolumePlugin is the error of a plugin that did not report its version to the agent.
var ErrNoHostVolumePlugin = errors.New("not fingerprinted: it did not answer the agent")

// HostVolumePlugins returns an error unless the node has host volume plugins with these ids. The agent looks for such
// plugins at its start, and gives each of them a second to answer.
func HostVolumePlugins(node *api.Node, ids ...string) error {
	for _, id := range ids {
		if node.Attributes["plugins.host_volume."+id+".version"] == "" {
			return fmt.Errorf("host volume plugin %s is %w", id, ErrNoHostVolumePlugin)
		}
	}
	return nil
}

// Self returns the node of the agent with this data_dir. The error is ErrNotRegistered if the node is not registered
// yet.
func Self(ctx context.Context, c *api.Client, dataDir string) (*api.Node, error) {
	self, err := c.Agent().Self()
	if err != nil {
		return nil, fmt.Errorf("the agent does not answer: %w", err)
	}
	if self.Config["DataDir"] != dataDir { // another agent answers: ours fails only when it tries to listen
		return nil, errors.New("another agent uses this agent's HTTP port")
	}
	client := self.Stats["client"]
	// a node's status is not enough: the servers list it as ready between a restart and the first heartbeat
	ago, err := time.ParseDuration(client["last_heartbeat"])
	if err != nil || ago > 24*time.Hour { // no heartbeat yet: ago counts from the zero time
		return nil, ErrNotRegistered
	}
	node, _, err := c.Nodes().Info(client["node_id"], (&api.QueryOptions{}).WithContext(ctx))
	var response api.UnexpectedResponseError
	if errors.As(err, &response) && response.StatusCode() == http.StatusNotFound {
		return nil, ErrNotRegistered
	}
	if err != nil {
		return nil, fmt.Errorf("failed to read node %s: %w", client["node_id"], err)
	}
	return node, nil
}

// NewClient returns an API client of the agent at an address. It ignores NOMAD_ADDR and NOMAD_TOKEN.
func NewClient(address string) (*api.Client, error) {
	c, err := api.NewClient(&api.Config{Address: address, Region: "global"})
	if err != nil {
		return nil, fmt.Errorf("failed to create a Nomad client: %w", err)
	}
	c.SetSecretID("")
	return c, nil
}

// Plain removes, from a message of Nomad, the prefix that gRPC adds to the errors of plugins.
func Plain(message string) string {
	return strings.ReplaceAll(message, "rpc error: code = Unknown desc = ", "")
}
