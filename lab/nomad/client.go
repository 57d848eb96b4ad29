// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package nomad finds, downloads or builds the nomad program (Binary), and reads the state of an agent.
package nomad

import (
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// NewClient is an API client of the agent at an address, whatever NOMAD_ADDR and NOMAD_TOKEN say.
func NewClient(address string) (*api.Client, error) {
	c, err := api.NewClient(&api.Config{Address: address, Region: "global"})
	if err != nil {
		return nil, fmt.Errorf("failed to make a Nomad client: %w", err)
	}
	c.SetSecretID("")
	return c, nil
}

// Plain removes from a message of Nomad's the prefix that gRPC puts before each error of a plugin.
func Plain(message string) string {
	return strings.ReplaceAll(message, "rpc error: code = Unknown desc = ", "")
}
