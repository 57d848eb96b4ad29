// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package agentapi asks the HTTP API of the Nomad agent that runs the plugin.
package agentapi

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// Config is where the API is, and how it is asked.
type Config struct {
	Address   string `codec:"address" default:"http://127.0.0.1:4646" doc:"Its address."`
	TokenFile string `codec:"token_file" doc:"File with a token of the policy in the documentation, absolute; it is read again for each request."`
	CAFile    string `codec:"ca_file" doc:"Certificate of the authority that has signed the agent's, absolute."`
	CertFile  string `codec:"cert_file" doc:"Client certificate, absolute, where the agent asks for one."`
	KeyFile   string `codec:"key_file" doc:"Its key, absolute."`
}

// Validate is part of the schema.
func (a Config) Validate() error {
	var p schema.Problems
	if u, err := url.Parse(a.Address); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		p = append(p, fmt.Errorf("address %q is not that of an agent: use for example \"http://127.0.0.1:4646\"",
			a.Address))
	}
	for _, f := range []struct{ option, path string }{
		{"token_file", a.TokenFile}, {"ca_file", a.CAFile}, {"cert_file", a.CertFile}, {"key_file", a.KeyFile},
	} {
		if f.path != "" && !filepath.IsAbs(f.path) {
			p = append(p, fmt.Errorf("%s %q is not an absolute path: write it from /", f.option, f.path))
		}
	}
	if (a.CertFile == "") != (a.KeyFile == "") {
		p = append(p, errors.New("cert_file and key_file belong together: set both or none"))
	}
	if len(p) == 0 {
		return nil
	}
	return p
}
