# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The packages and functions that outrider uses. Each exists in the nixpkgs of flake.lock.
{
  system,
  config ? { },
}:
let
  lib = import ./lib.nix;

  # A derivation that has its arguments as attributes, and is not there before they are evaluated.
  derive =
    name: args:
    args
    // derivation {
      inherit name system;
      builder = "/stub";
      arguments = builtins.toJSON args;
    };
  package = pname: derive pname { inherit pname; version = "1.26"; };
  text = t: if builtins.isString t then t else throw "not a string";

  packages =
    lib.genAttrs [
      "e2fsprogs"
      "gcc"
      "git"
      "go"
      "go_1_26"
      "iproute2"
      "iptables"
      "jq"
      "kmod"
      "libusb1"
      "nixfmt-tree"
      "openssh"
      "pkg-config"
      "procps"
      "python3"
      "qemu"
      "shellcheck"
      "umockdev"
      "usbutils"
      "util-linux"
      "uv"
    ] package
    // {
      nomad =
        let
          nomad = package "nomad";
        in
        if (config.allowUnfreePredicate or (_: false)) nomad then nomad else throw "nomad has an unfree license";
    };

  # pkgs/build-support/go/module.nix, with the arguments by name: one that it does not know is an error
  buildGo126Module =
    {
      pname,
      version,
      src,
      vendorHash,
      subPackages,
      tags,
      ldflags,
      env,
      meta,
      overrideModAttrs,
      nativeBuildInputs ? [ ],
      buildInputs ? [ ],
      postPatch ? "",
      preBuild ? "",
      postInstall ? "",
      doCheck ? true,
      doInstallCheck ? false,
      installCheckPhase ? "",
    }@args:
    let
      modules = {
        name = "${pname}-${version}-go-modules";
        buildPhase = "go mod vendor";
        outputHash = vendorHash;
        inherit src postPatch;
      };
      goModules = modules // overrideModAttrs modules;
    in
    derive "${pname}-${version}" (
      removeAttrs args [ "overrideModAttrs" ]
      // {
        goModules = derive goModules.name (removeAttrs goModules [ "name" ]);
      }
    );
in
packages
// {
  inherit lib system buildGo126Module;
  stdenv.hostPlatform = { inherit system; };
  formats.json = _: { type = lib.types.json; };
  linkFarm = name: entries: derive name { entries = map ({ name, path }: { inherit name path; }) entries; };
  mkShell = { packages }: derive "nix-shell" { inherit packages; };
  symlinkJoin = { name, paths }: derive name { inherit paths; };
  writeText = name: t: derive name { text = text t; };
  writeShellApplication = { name, runtimeInputs, text }: derive name { inherit runtimeInputs text; };
  testers.runNixOSTest =
    {
      name,
      nodes,
      testScript,
    }:
    derive "vm-test-run-${name}" {
      inherit testScript;
      nodes = builtins.mapAttrs (
        _: node: (import ./nixos.nix { modules = [ node ]; }).config.services.nomad.settings
      ) nodes;
    };
}
