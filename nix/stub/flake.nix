# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Stands in for nixpkgs where there is none, as in CI: `nix flake check --no-build --override-input nixpkgs
# path:nix/stub`. Its functions evaluate all that they are given, and know no package that outrider does not use.
# docs/nix.md says what that shows, and what not.
{
  outputs = _: import ./.;
}
