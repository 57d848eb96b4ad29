// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package nix

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// evaluate evaluates a NixOS module as that of a node.
func evaluate(t *testing.T, module string) (Node, error) {
	t.Helper()
	needNix(t)
	file := filepath.Join(t.TempDir(), "node.nix")
	must.NoError(t, os.WriteFile(file, []byte(module), 0o644))
	var n Node
	err := EvalNode(t.Context(), root, file, &n)
	return n, err
}

func TestModule_ConfiguresTheAgent(t *testing.T) {
	n, err := evaluate(t, `{ lib, ... }: {
		services.nomad.enable = true;
		services.outrider.exec-lite.enable = true;
		services.outrider.usb = lib.mkIf true { enable = true; settings.device.zigbee.id = "10c4:ea60"; };
	}`)
	must.NoError(t, err)
	test.Eq(t, []string{"nomad-driver-exec-lite", "nomad-device-usb"}, n.Plugins)
	test.False(t, n.DropPrivileges)
	test.SliceEmpty(t, n.Refused)
	got, err := json.Marshal(n.Settings.Plugin)
	must.NoError(t, err)
	test.EqJSON(t, `{
		"nomad-driver-exec-lite": {"config": [{}]},
		"nomad-device-usb": {"config": [{"device": {"zigbee": {"id": "10c4:ea60"}}}]}
	}`, string(got))
}

func TestModule_LinksHostVolumePlugins(t *testing.T) {
	n, err := evaluate(t, `{
		services.nomad = { enable = true; settings.client.enabled = true; };
		services.outrider.dataset.enable = true;
	}`)
	must.NoError(t, err)
	test.Eq(t, []string{"nomad-device-dataset"}, n.Plugins)
	test.Eq(t, true, n.Settings.Client["enabled"])
	dir, _ := n.Settings.Client["host_volume_plugin_dir"].(string)
	test.StrHasSuffix(t, "-outrider-host-volume-plugins", dir)

	n, err = evaluate(t, `{
		services.nomad = { enable = true; settings.client.host_volume_plugin_dir = "/mine"; };
		services.outrider.dataset.enable = true;
	}`)
	must.NoError(t, err)
	test.Eq(t, "/mine", n.Settings.Client["host_volume_plugin_dir"])

	n, err = evaluate(t, `{
		services.nomad = { enable = true; settings.client.enabled = true; };
		services.outrider.usb.enable = true;
	}`)
	must.NoError(t, err)
	test.Eq(t, map[string]any{"enabled": true}, n.Settings.Client)
}

func TestModule_IsNothingUntilEnabled(t *testing.T) {
	n, err := evaluate(t, `{ services.nomad.enable = true; }`)
	must.NoError(t, err)
	test.SliceEmpty(t, n.Plugins)
	test.True(t, n.DropPrivileges)
	test.MapEmpty(t, n.Settings.Plugin)
}

func TestModule_RefusesWhatCannotWork(t *testing.T) {
	for name, tc := range map[string]struct{ module, refused string }{
		"no agent": {`{ services.outrider.usb.enable = true; }`, "set services.nomad.enable = true"},
		"an agent without rights": {`{
			services.nomad = { enable = true; dropPrivileges = true; };
			services.outrider.usb.enable = true;
		}`, "needs an agent that runs as root"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := evaluate(t, tc.module)
			must.NoError(t, err)
			must.SliceLen(t, 1, n.Refused)
			test.StrContains(t, n.Refused[0], tc.refused)
		})
	}
	for name, tc := range map[string]struct{ module, err string }{
		"a plugin that is not there": {`{ services.outrider.ubs.enable = true; }`, "`services.outrider.ubs' does not exist"},
		"no boolean":                 {`{ services.outrider.usb.enable = 1; }`, "is not of type `boolean'"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := evaluate(t, tc.module)
			must.Error(t, err)
			test.StrContains(t, err.Error(), tc.err)
		})
	}
}

func TestModule_ExamplesOfThePage(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/nix.md")
	must.NoError(t, err)
	examples := regexp.MustCompile("(?s)```nix\n(\\{ # configuration.nix\n.*?)```").FindAllStringSubmatch(string(page), -1)
	must.SliceNotEmpty(t, examples)
	for _, example := range examples {
		n, err := evaluate(t, example[1])
		must.NoError(t, err)
		test.SliceNotEmpty(t, n.Plugins)
		test.SliceEmpty(t, n.Refused)
	}
}
