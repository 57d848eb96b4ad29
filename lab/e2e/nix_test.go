// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/nix"
)

// TestNix_ConfigurationIsLoaded gives an agent what the NixOS module makes of settings. NixOS writes it as JSON, and
// Nomad reads nested blocks in some forms of that only.
func TestNix_ConfigurationIsLoaded(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("nix"); err != nil {
		t.Skip("there is no nix")
	}
	n := newPlainNode(t)
	module := filepath.Join(n.work, "node.nix")
	must.NoError(t, os.WriteFile(module, []byte(`{
		services.nomad.enable = true;
		services.outrider = {
			exec-lite = { enable = true; settings.denied_envvars = [ "AWS_*" ]; };
			python = { enable = true; settings = { interpreters = [ "/usr/bin/python3" ]; installer = "pip"; }; };
			usb = {
				enable = true;
				settings.device = { zigbee.id = "10c4:ea60"; gps = { id = "1546:*"; count = 2; }; };
			};
		};
	}`), 0o644))
	var node nix.Node
	must.NoError(t, nix.EvalNode(t.Context(), "../..", module, &node))
	must.SliceLen(t, 3, node.Plugins)
	for _, plugin := range node.Plugins {
		must.NoError(t, share(filepath.Join(n.work, plugin), filepath.Join(n.PluginDir(), plugin)))
	}
	text, err := json.Marshal(node.Settings)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(n.etc, "nomad.json"), text, 0o644))
	out, err := shell(t, n.work, n.env(), "systemctl restart nomad")
	must.NoError(t, err, must.Sprintf("the agent does not start with %s:\n%s", text, out))
	must.NoError(t, loaded(t.Context(), n, `plugin "nomad-driver-exec-lite"`+"\n"+`plugin "nomad-device-usb"`))
}
