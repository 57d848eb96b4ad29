# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The outputs of outrider's flake on the stub, for nix-instantiate, which needs neither a store nor a lock.
let
  nixpkgs = import ./.;
  flake = import ../../flake.nix;
  self = flake.outputs { inherit self nixpkgs; } // {
    lastModifiedDate = "20260102030405";
    rev = "0123456789abcdef0123456789abcdef01234567";
  };
in
self
// {
  plugins = import ../plugins.nix;
  overlaid = self.overlays.default nixpkgs.legacyPackages.x86_64-linux { };

  # A package by what its build runs, and of what files.
  build =
    name:
    let
      p = self.packages.x86_64-linux.${name};
    in
    {
      inherit (p) vendorHash postPatch preBuild postInstall installCheckPhase subPackages tags ldflags version;
      inherit (p.src) files;
      cgo = p.env.CGO_ENABLED;
      vendor = p.goModules.buildPhase;
      binary = p.meta.mainProgram;
    };

  # What the VM test runs.
  vm =
    let
      test = import ../test.nix self;
    in
    {
      script = test.testScript;
      jobs = builtins.mapAttrs (_: file: file.text) test.nodes.machine.environment.etc;
    };

  # The configuration of a node with the module, as far as outrider sets it.
  node =
    file:
    let
      inherit ((nixpkgs.lib.nixosSystem { modules = [ self.nixosModules.default (import file) ]; })) config;
    in
    {
      inherit (config.services.nomad) dropPrivileges settings;
      plugins = map (p: p.meta.mainProgram) config.services.nomad.extraSettingsPlugins;
      refused = map (a: a.message) (builtins.filter (a: !a.assertion) config.assertions);
    };
}
