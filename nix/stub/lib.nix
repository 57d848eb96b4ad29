# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# What outrider uses of nixpkgs' lib. Options know their type, default and priority; there are no submodules.
let
  inherit (builtins) all any attrNames concatMap elem filter foldl' head isAttrs isList listToAttrs mapAttrs;

  isType = type: v: isAttrs v && v._type or null == type;
  typed = _type: fields: { inherit _type; } // fields;

  # the attributes of a definition without the mkMerge, mkIf and mkOverride around them
  spread =
    v:
    if isType "merge" v then
      concatMap spread v.contents
    else if isType "if" v then
      map (mapAttrs (_: lib.mkIf v.condition)) (spread v.content)
    else
      [ v ];

  # a definition's values, with their priorities
  values =
    v:
    if isType "merge" v then
      concatMap values v.contents
    else if isType "if" v then
      (if v.condition then values v.content else [ ])
    else if isType "override" v then
      map (x: x // { inherit (v) priority; }) (values v.content)
    else
      [ { priority = 100; value = v; } ];

  # the values of the highest priority
  strongest =
    defs:
    let
      found = concatMap values defs;
      first = foldl' (a: b: if b < a then b else a) 10000 (map (v: v.priority) found);
    in
    map (v: v.value) (filter (v: v.priority == first) found);

  type = name: check: merge: { inherit name check merge; };
  one =
    path: found:
    if all (v: v == head found) found then head found else throw "The option `${path}' has conflicting values";
  join = _: builtins.concatLists;
  each =
    merge: path: found:
    lib.genAttrs (concatMap attrNames found) (
      name: merge "${path}.${name}" (concatMap (v: if v ? ${name} then [ v.${name} ] else [ ]) found)
    );
  json =
    path: defs:
    let
      found = strongest defs;
    in
    if all isAttrs found && !any (v: v ? outPath) found then
      each json path found
    else if all isList found then
      join path found
    else
      one path found;

  option =
    path: o: defs:
    let
      found = strongest defs;
      wrong = filter (v: !o.type.check v) found;
    in
    if wrong != [ ] then
      throw "A definition for option `${path}' is not of type `${o.type.name}'."
    else if found != [ ] then
      o.type.merge path found
    else
      o.default or (throw "The option `${path}' was accessed but has no value defined.");

  # the configuration of a tree of options
  configure =
    path: options: defs:
    let
      known = concatMap spread defs;
      unknown = filter (name: !options ? ${name}) (concatMap attrNames known);
      below =
        name: o:
        (if isType "option" o then option else configure) "${path}${if path == "" then "" else "."}${name}" o (
          concatMap (d: if d ? ${name} then [ d.${name} ] else [ ]) known
        );
    in
    if unknown != [ ] then
      throw "The option `${path}.${head unknown}' does not exist."
    else
      mapAttrs below options;

  merge =
    a: b:
    a // mapAttrs (name: v: if a ? ${name} && !isType "option" v then merge a.${name} v else v) b;

  lib = {
    inherit merge;
    inherit (builtins) mapAttrs;
    genAttrs = names: f: listToAttrs (map (name: { inherit name; value = f name; }) names);
    optional = condition: v: if condition then [ v ] else [ ];
    optionalString = condition: v: if condition then v else "";
    hasInfix = part: s: builtins.length (builtins.split (builtins.replaceStrings [ "." ] [ "\\." ] part) s) > 1;
    versionAtLeast = a: b: builtins.compareVersions a b >= 0;
    getName = p: p.pname;
    licenses.mpl20.spdxId = "MPL-2.0";
    platforms.linux = [ "x86_64-linux" "aarch64-linux" ];

    # .files are the paths, which have to exist
    fileset = {
      unions = map (
        p: if builtins.pathExists p then toString p else throw "lib.fileset.unions: ${toString p} does not exist."
      );
      toSource = { root, fileset }: builtins.deepSeq fileset { outPath = toString root; files = fileset; };
    };

    mkOption = typed "option";
    mkEnableOption = description: lib.mkOption { inherit description; type = lib.types.bool; default = false; };
    mkIf = condition: content: typed "if" { inherit condition content; };
    mkMerge = contents: typed "merge" { inherit contents; };
    mkDefault = content: typed "override" { inherit content; priority = 1000; };
    literalExpression = text: typed "literalExpression" { inherit text; };

    types = {
      bool = type "boolean" builtins.isBool one;
      str = type "string" builtins.isString one;
      package = type "package" (v: v.type or null == "derivation") one;
      listOf = t: type "list of ${t.name}" (v: isList v && all t.check v) join;
      json = type "JSON value" (v: !builtins.isFunction v) json;
    };

    evalModules =
      { modules, specialArgs }:
      let
        load =
          m:
          let
            v = if builtins.isPath m then import m else m;
            found = if builtins.isFunction v then v (specialArgs // { inherit config; }) else v;
            whole = if found ? config || found ? options then found else { config = removeAttrs found [ "imports" ]; };
          in
          concatMap load (found.imports or [ ]) ++ [ whole ];
        loaded = concatMap load modules;
        config = configure "" (foldl' merge { } (map (m: m.options or { }) loaded)) (map (m: m.config or { }) loaded);
      in
      {
        inherit config;
      };
  };
in
lib
