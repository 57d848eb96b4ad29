# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The module in a NixOS configuration with every plugin, as far as it can be evaluated without a build: the agent's
# configuration as a file.
{
  self,
  nixpkgs,
  system,
}:
let
  pkgs = nixpkgs.legacyPackages.${system};
  node = nixpkgs.lib.nixosSystem {
    modules = [
      self.nixosModules.default
      {
        nixpkgs.hostPlatform = system;
        services.nomad.enable = true;
        services.outrider = {
          dataset.enable = true;
          exec-lite.enable = true;
          python.enable = true;
          remote.enable = true;
          usb = {
            enable = true;
            settings.device.zigbee.id = "10c4:ea60";
          };
        };
      }
    ];
  };
  refused = builtins.filter (a: !a.assertion && pkgs.lib.hasInfix "outrider" a.message) node.config.assertions;
in
if refused == [ ] then
  pkgs.writeText "nomad.json" (builtins.toJSON node.config.services.nomad.settings)
else
  throw (builtins.head refused).message
