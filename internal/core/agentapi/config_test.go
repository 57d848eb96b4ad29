// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agentapi

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestConfig_RefusesInvalidValues(t *testing.T) {
	good := Config{Address: "https://127.0.0.1:4646", CAFile: "/ca", CertFile: "/cert", KeyFile: "/key"}
	must.NoError(t, good.Validate())
	must.ErrorContains(t, Config{Address: "127.0.0.1:4646"}.Validate(), `use for example "http://127.0.0.1:4646"`)
	must.ErrorContains(t, Config{Address: good.Address, TokenFile: "token"}.Validate(),
		`token_file "token" is not an absolute`)
	must.ErrorContains(t, Config{Address: good.Address, KeyFile: "/key"}.Validate(), "set both or none")
}
