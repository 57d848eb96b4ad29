// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package agentapi is a client of the HTTP API of the Nomad agent that runs the plugin.
package agentapi

import (
	"net/url"
	"path/filepath"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

// Config is the part of a plugin's configuration that describes how to reach the API.
type Config struct {
	Address   string `codec:"address" default:"http://127.0.0.1:4646" doc:"The address of the agent's API."`
	TokenFile string `codec:"token_file" doc:"Absolute path of a file with a token that has the policy in the documentation; it is read again for each request."`
	CAFile    string `codec:"ca_file" doc:"Absolute path of the CA certificate that has signed the agent's certificate."`
	CertFile  string `codec:"cert_file" doc:"Absolute path of a client certificate, if the agent requires one."`
	KeyFile   string `codec:"key_file" doc:"Absolute path of the client certificate's key."`
}

// Validate checks the configuration. Package schema calls it after decoding.
func (a Config) Validate() error {
	var p schema.Problems
	if u, err := url.Parse(a.Address); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		p.Addf("address %q is not the URL of an agent: use for example \"http://127.0.0.1:4646\"", a.Address)
	}
	for _, f := range []struct{ option, path string }{
		{"token_file", a.TokenFile}, {"ca_file", a.CAFile}, {"cert_file", a.CertFile}, {"key_file", a.KeyFile},
	} {
		if f.path != "" && !filepath.IsAbs(f.path) {
			p.Addf("%s %q is not an absolute path: begin it with /", f.option, f.path)
		}
	}
	if (a.CertFile == "") != (a.KeyFile == "") {
		p.Addf("cert_file and key_file belong together: set both or none")
	}
	return p.OrNil()
}
