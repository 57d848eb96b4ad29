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

// parseJob lets the agent parse a job file: it may support more options than this program.
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

// mistakes lists the errors in a job file, one a line, with the file's name. The agent names each file input.hcl, and
// may report only the first of several errors.
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

// plain returns the message of an API error, without the HTTP status around it.
func plain(err error) string {
	var response api.UnexpectedResponseError
	if errors.As(err, &response) && response.HasBody() {
		return nomad.Plain(response.Body())
	}
	return err.Error()
}
