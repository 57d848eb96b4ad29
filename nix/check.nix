# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Tests of the module that only evaluate a node's configuration, without a build of NixOS.
{
  self,
  nixpkgs,
  system,
}:
let
  inherit (nixpkgs) lib;
  node =
    module:
    (lib.nixosSystem {
      modules = [
        self.nixosModules.default
        { nixpkgs.hostPlatform = system; }
        module
      ];
    }).config;
  nomad = module: (node module).services.nomad;
  client = module: (nomad module).settings.client;
  binaries = module: map (plugin: plugin.meta.mainProgram) (nomad module).extraSettingsPlugins;
  refused =
    module:
    map (a: a.message) (
      builtins.filter (a: !a.assertion && lib.hasInfix "outrider" a.message) (node module).assertions
    );
  isRefused = reason: module: builtins.any (lib.hasInfix reason) (refused module);

  example = import ./example.nix; # the example of docs/develop/nix.md
  agent.services.nomad.enable = true;
  dataset.imports = [
    agent
    { services.outrider.dataset.enable = true; }
  ];
  usb.imports = [
    agent
    { services.outrider.usb.enable = true; }
  ];

  failed = lib.runTests {
    testExampleIsAccepted = {
      expr = refused example;
      expected = [ ];
    };
    testExampleHasItsPlugins = {
      expr = binaries example;
      expected = [
        "nomad-driver-exec-lite"
        "nomad-driver-python"
        "nomad-device-usb"
      ];
    };
    testExampleRunsAsRoot = {
      expr = (nomad example).dropPrivileges;
      expected = false;
    };
    testSettingsAreThePluginsConfig = {
      expr = (nomad example).settings.plugin.nomad-device-usb;
      expected.config = [ { device.zigbee.id = "10c4:ea60"; } ];
    };
    testHostVolumePluginIsLinked = {
      expr = lib.hasSuffix "-outrider-host-volume-plugins" (client dataset).host_volume_plugin_dir;
      expected = true;
    };
    testHostVolumePluginDirOfTheUserIsKept = {
      expr = client {
        imports = [ dataset ];
        services.nomad.settings.client.host_volume_plugin_dir = "/mine";
      };
      expected.host_volume_plugin_dir = "/mine";
    };
    testNoDirWithoutHostVolumePlugin = {
      expr = (nomad usb).settings ? client.host_volume_plugin_dir;
      expected = false;
    };
    testRemoteHasSsh = {
      expr = map lib.getName (nomad {
        imports = [ agent ];
        services.outrider.remote.enable = true;
      }).extraPackages;
      expected = [ "openssh" ];
    };
    testPythonSearchesADirectory = {
      expr = map (lib.hasSuffix "/bin") (node agent).services.outrider.python.settings.interpreters;
      expected = [ true ];
    };
    testNothingUntilEnabled = {
      expr = binaries agent ++ [ (nomad agent).dropPrivileges ];
      expected = [ true ];
    };
    testNoAgentIsRefused = {
      expr = isRefused "set services.nomad.enable = true" { services.outrider.usb.enable = true; };
      expected = true;
    };
    testAgentWithoutRightsIsRefused = {
      expr = isRefused "needs an agent that runs as root" {
        imports = [ usb ];
        services.nomad.dropPrivileges = true;
      };
      expected = true;
    };
  };
in
if failed == [ ] then
  nixpkgs.legacyPackages.${system}.writeText "module.json" (builtins.toJSON (nomad example).settings)
else
  throw (lib.generators.toPretty { } failed)
