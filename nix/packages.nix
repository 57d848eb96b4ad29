# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A package for each plugin, a second one for plugins that can link libusb, and all static packages as "default".
{ pkgs, version }:
let
  inherit (pkgs) lib;
  plugins = import ./plugins.nix;
  root = ../.;

  # The hash of the packages that core and plugins import, which changes only with these and their versions.
  # `go tool mage nix:hash` writes it, and a test compares it.
  vendorHash = "sha256-FAQZu6B3up/vX6x3458To6QrPswTeJ4ANdNaIgmV9hQ=";

  buildGoModule =
    pkgs.buildGo126Module or (
      if lib.versionAtLeast pkgs.go.version "1.26" then
        pkgs.buildGoModule
      else
        throw "outrider needs Go 1.26, which this nixpkgs does not have: update it, or use outrider's own (docs/develop/nix.md)"
    );

  build =
    name: libusb:
    let
      inherit (plugins.${name}) binary;
    in
    buildGoModule {
      pname = binary + lib.optionalString libusb "-libusb";
      inherit version vendorHash;

      src = lib.fileset.toSource {
        inherit root;
        fileset = lib.fileset.unions [
          (root + "/go.work")
          (root + "/go.work.sum")
          (root + "/internal/core")
          (root + "/plugins")
          (root + "/LICENSE")
          (root + "/NOTICE")
        ];
      };

      # The workspace without the lab and the tools: neither their code nor their imports are part of a plugin.
      postPatch = "go work edit -dropuse=. -dropuse=./lab";
      # Not `go mod vendor`, which would also vendor internal/core: the hash would change with each edit there. All
      # plugins and versions use the same name, so the modules are fetched once.
      overrideModAttrs = _: {
        name = "outrider-go-modules";
        buildPhase = "go work vendor";
      };

      env.CGO_ENABLED = if libusb then 1 else 0;
      nativeBuildInputs = lib.optional libusb pkgs.pkg-config;
      buildInputs = lib.optional libusb pkgs.libusb1;

      # As in lab/build, the static supervisor is built first, for the plugin to embed. It has no version, so plugins of
      # other commits do not replace an identical supervisor.
      preBuild = ''
        CGO_ENABLED=0 go build -buildvcs=false -ldflags="-s -w" \
          -o internal/core/supervisor/embedded/outrider-supervisor ./internal/core/cmd/outrider-supervisor
      '';
      subPackages = [ "plugins/${name}" ];
      tags = [ "embed_supervisor" ];
      ldflags = [
        "-s"
        "-w"
        "-X github.com/outrider-dev/outrider/internal/core/plugin.version=${version}"
      ];
      postInstall = ''
        mv $out/bin/${name} $out/bin/${binary}
        install -D -m 444 -t $out/share/doc/${binary} LICENSE NOTICE
      '';

      # The tests need cgroups, users and a Nomad agent, which a build does not have.
      doCheck = false;
      doInstallCheck = true;
      installCheckPhase = ''
        $out/bin/${binary} version | grep -F "${binary} ${version}"
      '';

      meta = {
        description = "Plugin ${name} for HashiCorp Nomad" + lib.optionalString libusb ", linked with libusb";
        homepage = "https://github.com/outrider-dev/outrider";
        license = lib.licenses.mpl20;
        platforms = lib.platforms.linux;
        mainProgram = binary;
      };
    };

  static = builtins.mapAttrs (name: _: build name false) plugins;
  linked = map (name: {
    name = "${name}-libusb";
    value = build name true;
  }) (builtins.filter (name: plugins.${name}.libusb) (builtins.attrNames plugins));
in
static
// builtins.listToAttrs linked
// {
  default = pkgs.symlinkJoin {
    name = "outrider-${version}";
    paths = builtins.attrValues static;
  };
}
