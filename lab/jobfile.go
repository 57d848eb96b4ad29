// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/nomad"
)

// parseJob has the nomad program parse a job file.
func parseJob(ctx context.Context, a agent.Agent, path string) (*api.Job, error) {
	cmd := nomadCommand(ctx, a, "job", "run", "-output", path)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil && errOut.Len() > 0 {
		return nil, fmt.Errorf("failed to parse the job file:\n%s", strings.TrimSpace(errOut.String()))
	}
	var parsed struct{ Job *api.Job }
	if err == nil {
		err = json.Unmarshal(out, &parsed)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to parse the job file: %w", err)
	}
	parsed.Job.Canonicalize()
	return parsed.Job, nil
}

// plain returns the message of an API error, without the HTTP status around it.
func plain(err error) string {
	var response api.UnexpectedResponseError
	if errors.As(err, &response) && response.HasBody() {
		return nomad.Plain(response.Body())
	}
	return err.Error()
}
