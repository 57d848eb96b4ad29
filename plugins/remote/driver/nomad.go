// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"

	"github.com/outrider-dev/outrider/plugins/remote/cluster"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// newCluster is Nomad's API. It does not connect.
func newCluster(a API) *cluster.Client {
	return cluster.New(cluster.Options{
		Addresses: a.addresses(), TokenFile: a.TokenFile, CAFile: a.CAFile, CertFile: a.CertFile, KeyFile: a.KeyFile,
	})
}

// Sight is what Nomad's API shows to the plugin's own token, in a sentence.
func (e *Endpoints) Sight(ctx context.Context) cluster.Sight {
	if len(e.config.API.addresses()) == 0 {
		return cluster.Sight{Reason: "api.address is empty: Nomad is not asked"}
	}
	return e.nomad.Sight(ctx)
}

// Fits returns an error if Nomad tells that an allocation is not of the job, group, index and task of a key.
func (e *Endpoints) Fits(ctx context.Context, k endpoint.Key, alloc string) error {
	return e.nomad.Fits(ctx, k, alloc)
}
