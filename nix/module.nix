# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# NixOS options for each plugin, on top of services.nomad.
self:
{
  config,
  lib,
  pkgs,
  ...
}:
let
  plugins = import ./plugins.nix;
  cfg = config.services.outrider;
  enabled = builtins.filter (name: cfg.${name}.enable) (builtins.attrNames plugins);
  volumes = builtins.filter (name: plugins.${name}.hostVolume != null) enabled;
in
{
  options.services.outrider = builtins.mapAttrs (name: plugin: {
    enable = lib.mkEnableOption "the plugin ${name} in the Nomad agent of this node";
    package = lib.mkOption {
      type = lib.types.package;
      default = self.packages.${pkgs.stdenv.hostPlatform.system}.${name};
      defaultText = lib.literalExpression "outrider.packages.\${system}.${name}";
      description = "The package with bin/${plugin.binary}.";
    };
    settings = lib.mkOption {
      type = (pkgs.formats.json { }).type;
      default = { };
      description = ''
        The `config` block of `plugin "${plugin.binary}"` in the agent's configuration. A block with a label is an
        attribute set in one: `device "zigbee" { id = "10c4:ea60" }` is `device.zigbee.id = "10c4:ea60"`.
      '';
    };
  }) plugins;

  config = lib.mkMerge [
    {
      # On NixOS, neither is at a path where the plugin looks by default.
      services.outrider.python.settings = {
        interpreters = lib.mkDefault [ "${pkgs.python3}/bin" ];
        uv = lib.mkDefault "${pkgs.uv}/bin/uv";
      };
    }
    (lib.mkIf (enabled != [ ]) {
      assertions = [
        {
          assertion = config.services.nomad.enable;
          message = "services.outrider needs a Nomad agent to load its plugins: set services.nomad.enable = true";
        }
        {
          assertion = !config.services.nomad.dropPrivileges;
          message =
            "services.outrider needs an agent that runs as root, because its plugins start tasks as other users "
            + "and create cgroups and device nodes: leave services.nomad.dropPrivileges at false";
        }
      ];
      services.nomad = {
        dropPrivileges = lib.mkDefault false;
        extraSettingsPlugins = map (name: cfg.${name}.package) enabled;
        extraPackages = lib.mkIf cfg.remote.enable [ pkgs.openssh ];
        settings.client = lib.mkIf (volumes != [ ]) {
          # Plugins that are also host volume plugins.
          host_volume_plugin_dir = lib.mkDefault "${pkgs.linkFarm "outrider-host-volume-plugins" (
            map (name: {
              name = plugins.${name}.hostVolume;
              path = "${cfg.${name}.package}/bin/${plugins.${name}.binary}";
            }) volumes
          )}";
        };
        settings.plugin = builtins.listToAttrs (
          map (name: {
            name = plugins.${name}.binary;
            # A list: in an attribute set, Nomad would treat the labels of blocks as unknown keys.
            value.config = [ cfg.${name}.settings ];
          }) enabled
        );
      };
    })
  ];
}
