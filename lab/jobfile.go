// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/jobspec2"

	"github.com/outrider-dev/outrider/lab/nomad"
)

// parseJob has the agent parse a job file: it may know more options than we do.
func parseJob(c *api.Client, path string) (*api.Job, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("failed to read job file: %w", err)
	}
	job, err := c.Jobs().ParseHCL(string(text), true)
	if err != nil {
		return nil, fmt.Errorf("failed to parse the job file:\n%s", mistakes(path, text, err))
	}
	return job, nil
}

// mistakes are what is wrong with a job file, one a line and with its name. The agent names
// each file input.hcl, and of several mistakes it may tell only the first.
func mistakes(path string, text []byte, refused error) string {
	_, err := jobspec2.ParseWithConfig(&jobspec2.ParseConfig{Path: path, Body: text})
	var all hcl.Diagnostics
	switch {
	case errors.As(err, &all):
		var lines []string
		for _, d := range all {
			lines = append(lines, d.Error())
		}
		return strings.Join(lines, "\n")
	case err != nil:
		return err.Error()
	}
	return strings.ReplaceAll(strings.TrimPrefix(plain(refused), "Failed to parse job: "), "input.hcl:", path+":")
}

// plain is what the agent's API answers, without the HTTP around it.
func plain(err error) string {
	var response api.UnexpectedResponseError
	if errors.As(err, &response) && response.HasBody() {
		return nomad.Plain(response.Body())
	}
	return err.Error()
}
