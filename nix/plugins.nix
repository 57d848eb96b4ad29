# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# The plugins by name: each folder of plugins/ that is a module. A test compares them with those of the lab.
let
  dir = ../plugins;
  isPlugin = name: builtins.pathExists (dir + "/${name}/go.mod");
  names = builtins.filter isPlugin (builtins.attrNames (builtins.readDir dir));

  # What a plugin's main.go has of a pattern: null, or the groups in it.
  find =
    pattern: name:
    let
      parts = builtins.split pattern (builtins.readFile (dir + "/${name}/main.go"));
    in
    if builtins.length parts > 1 then builtins.elemAt parts 1 else null;

  # A device plugin is one that imports the core of device plugins.
  isDevice = name: find "\"[^\"\n]*/internal/core/device\"" name != null;

  # The id of the host volume plugin that a binary is, too; null if it is none.
  hostVolume =
    name:
    let
      found = find "\tHostVolumePlugin: *\"([^\"\n]+)\"" name;
    in
    if found == null then null else builtins.head found;
in
builtins.listToAttrs (
  map (name: {
    inherit name;
    value = {
      binary = "nomad-${if isDevice name then "device" else "driver"}-${name}";
      hostVolume = hostVolume name;
      libusb = builtins.pathExists (dir + "/${name}/libusb"); # can be linked with it
    };
  }) names
)
