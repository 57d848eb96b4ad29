# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The plugins by name: each folder of plugins/ that is a module. A test compares them with the lab's plugins.
let
  dir = ../plugins;
  isPlugin = name: builtins.pathExists (dir + "/${name}/go.mod");
  names = builtins.filter isPlugin (builtins.attrNames (builtins.readDir dir));

  # A device plugin is one that imports the core of device plugins.
  isDevice =
    name:
    let
      main = builtins.readFile (dir + "/${name}/main.go");
    in
    builtins.length (builtins.split "\"[^\"\n]*/internal/core/device\"" main) > 1;

  # The ids of binaries that are also host volume plugins.
  hostVolumes.dataset = "dataset";
in
builtins.listToAttrs (
  map (name: {
    inherit name;
    value = {
      binary = "nomad-${if isDevice name then "device" else "driver"}-${name}";
      hostVolume = hostVolumes.${name} or null;
      libusb = builtins.pathExists (dir + "/${name}/libusb"); # can be linked with libusb
    };
  }) names
)
