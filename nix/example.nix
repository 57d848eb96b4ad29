# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

{ # configuration.nix
  nixpkgs.hostPlatform = "x86_64-linux";
  services.nomad = {
    enable = true;
    enableDocker = false;
    settings = {
      server = { enabled = true; bootstrap_expect = 1; };
      client.enabled = true;
    };
  };
  services.outrider = {
    exec-lite = {
      enable = true;
      settings.denied_envvars = [ "AWS_*" ];
    };
    python.enable = true;
    usb = {
      enable = true;
      settings.device.zigbee.id = "10c4:ea60";
    };
  };
}
