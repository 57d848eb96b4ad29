// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"os"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// nomad is Nomad's API, for what a person does with volumes.
type nomad struct{ *api.Client }

// connect uses Nomad's own environment variables where nothing is given.
func connect(address, tokenFile string) (*nomad, error) {
	config := api.DefaultConfig()
	config.Address = cmp.Or(address, config.Address)
	if tokenFile != "" {
		token, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, err
		}
		config.SecretID = strings.TrimSpace(string(token))
	}
	client, err := api.NewClient(config)
	return &nomad{client}, err
}

func read(ctx context.Context, namespace string) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: namespace}).WithContext(ctx)
}

// absent reports whether Nomad says that there is no such thing.
func absent(err error) bool {
	var r api.UnexpectedResponseError
	return errors.As(err, &r) && r.StatusCode() == http.StatusNotFound
}
