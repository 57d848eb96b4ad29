# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# docs/develop/nix.md describes how to use it, and which parts of it are tested.
{
  description = "Lightweight task drivers and device plugins for HashiCorp Nomad, and a lab to try them";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      forEach = lib.genAttrs [
        "x86_64-linux"
        "aarch64-linux"
      ];

      # The version that Go stamps into a build of a commit without a tag. The source of a flake has no tags.
      version =
        "0.0.0-${self.lastModifiedDate}-"
        + builtins.substring 0 12 (self.rev or self.dirtyRev or "000000000000")
        + lib.optionalString (!self ? rev) "+dirty";
      packages = pkgs: import ./nix/packages.nix { inherit pkgs version; };

      # Nomad is not free (BUSL-1.1). The shell, the lab and the VM test have it; no package refers to it.
      withNomad =
        system:
        import nixpkgs {
          inherit system;
          config.allowUnfreePredicate = package: lib.getName package == "nomad";
        };

      # Programs that the README, the lab and the tests use. Tools written in Go come with `go tool`.
      tools =
        pkgs:
        [ (pkgs.go_1_26 or pkgs.go) ]
        ++ (with pkgs; [
          e2fsprogs
          gcc
          git
          iproute2
          iptables
          jq
          kmod
          libusb1
          nomad
          openssh
          pkg-config
          procps
          python3
          qemu
          shellcheck
          umockdev
          usbutils
          util-linux
          uv
        ]);
    in
    {
      packages = forEach (system: packages nixpkgs.legacyPackages.${system});

      overlays.default = final: _: { outrider = packages final; };

      nixosModules.default = import ./nix/module.nix self;

      devShells = forEach (
        system:
        let
          pkgs = withNomad system;
        in
        {
          default = pkgs.mkShell { packages = tools pkgs; };
        }
      );

      # nix run .#lab -- up; nix run .#lab -- run JOB
      apps = forEach (
        system:
        let
          pkgs = withNomad system;
          lab = pkgs.writeShellApplication {
            name = "outrider-lab";
            runtimeInputs = tools pkgs;
            text = ''
              if [ ! -f magefile.go ]; then
                echo "The lab runs in a checkout of outrider: clone it, and start this in its folder." >&2
                exit 1
              fi
              target=''${1:-up}
              shift || true
              exec go tool mage "lab:$target" "$@"
            '';
          };
        in
        {
          lab = {
            type = "app";
            program = "${lab}/bin/outrider-lab";
          };
        }
      );

      checks = forEach (
        system:
        self.packages.${system}
        // {
          module = import ./nix/check.nix { inherit self nixpkgs system; };
          vm = (withNomad system).testers.runNixOSTest (import ./nix/test.nix self);
        }
      );

      formatter = forEach (system: nixpkgs.legacyPackages.${system}.nixfmt-tree);
    };
}
