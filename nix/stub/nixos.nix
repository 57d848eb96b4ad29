# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# lib.nixosSystem with those options of NixOS that outrider sets or reads, by the names, types and defaults that they
# have there (nixos/modules/services/networking/nomad.nix, nixos/lib/testing).
{ modules }:
let
  lib = import ./lib.nix;
  inherit (lib) mkEnableOption mkOption types;
  pkgs = import ./pkgs.nix { system = "x86_64-linux"; };
  option = type: default: mkOption { inherit type default; };

  nixos.options = {
    assertions = option types.json [ ];
    environment.etc = option types.json { };
    nixpkgs.hostPlatform = option types.str "x86_64-linux";
    virtualisation.memorySize = option types.json 1024;
    virtualisation.qemu.options = option (types.listOf types.str) [ ];
    services.nomad = {
      enable = mkEnableOption "Nomad";
      enableDocker = option types.bool true;
      dropPrivileges = option types.bool true;
      extraPackages = option (types.listOf types.package) [ ];
      extraSettingsPlugins = option (types.listOf types.package) [ ];
      settings = option types.json { };
    };
  };
  inherit (lib.evalModules {
    modules = [ nixos ] ++ modules;
    specialArgs = { inherit lib pkgs; };
  }) config;
in
# all but packages, whose attributes have no end
builtins.deepSeq (builtins.toJSON config) { inherit config; }
