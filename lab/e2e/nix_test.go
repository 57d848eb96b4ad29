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

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/nix"
)

// TestNix_ConfigurationIsLoaded gives an agent what the NixOS module makes of settings. NixOS writes it as JSON, and
// Nomad reads nested blocks in some forms of that only. Then the agent gets the jobs of the VM test, which nothing here
// can boot.
func TestNix_ConfigurationIsLoaded(t *testing.T) {
	testsupport.Long(t, "starts an agent of its own")
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

	var vm struct {
		Script string
		Jobs   map[string]string
	}
	must.NoError(t, nix.Eval(t.Context(), "../..", "vm", &vm))
	must.MapLen(t, 3, vm.Jobs)
	for file, job := range vm.Jobs {
		must.NoError(t, os.WriteFile(filepath.Join(n.work, filepath.Base(file)), []byte(job), 0o644))
	}
	must.NoError(t, os.WriteFile(filepath.Join(n.work, "script.py"), []byte(vm.Script), 0o644))
	out, err = shell(t, n.work, n.env(), `
		python3 -c 'compile(open("script.py").read(), "script.py", "exec")'
		nomad job validate usb.nomad.hcl
		nomad job run service.nomad.hcl
		nomad job run python.nomad.hcl
		timeout 60 sh -c 'until nomad alloc logs -job service | grep "^pid "; do sleep 0.2; done'
		timeout 60 sh -c 'until nomad alloc logs -job python | grep "^Python 3"; do sleep 0.2; done'
		nomad job stop -purge service`)
	must.NoError(t, err, must.Sprint(out))
}
