# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# `import nixpkgs { system, config }` and the outputs of nixpkgs' flake, in one.
let
  lib = import ./lib.nix;
  pkgs = import ./pkgs.nix;
in
{
  outPath = ./.; # for `import nixpkgs`
  __functor = _: pkgs;
  lib = lib // {
    nixosSystem = import ./nixos.nix;
  };
  legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (system: pkgs { inherit system; });
}
