# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Tells what an interpreter is, as one line of JSON. Python 3.4 must be able to read it.
import sys, json, os, sysconfig

v = sys.version_info
answer = {"version": "%d.%d.%d" % v[:3], "executable": sys.executable or ""}
if v[3] != "final":
    answer["version"] += {"alpha": "a", "beta": "b", "candidate": "rc"}[v[3]] + str(v[4])

if v >= (3, 8):
    import glob, importlib, importlib.metadata, importlib.util

    get = sysconfig.get_config_var

    def libc():
        try:
            text = os.confstr("CS_GNU_LIBC_VERSION")
        except (AttributeError, ValueError, OSError):
            text = None
        return text or ("musl" if "musl" in str(get("HOST_GNU_TYPE")) + str(get("SOABI")) else "")

    def pip():
        spec = importlib.util.find_spec("pip")
        if spec is None or not spec.origin:  # without one it is what is left of a pip
            return ""
        answer["pip_dir"] = os.path.dirname(spec.origin)
        try:
            return importlib.metadata.version("pip")
        except importlib.metadata.PackageNotFoundError:
            return getattr(importlib.import_module("pip"), "__version__", "")

    # The wheels of a distribution are for its own interpreters: an old pip does not run
    # on a new Python.
    def wheels():
        dirs = []
        spec = importlib.util.find_spec("ensurepip")
        if spec is not None and spec.origin:
            dirs.append(os.path.join(os.path.dirname(spec.origin), "_bundled"))
        if get("WHEEL_PKG_DIR"):
            dirs.append(get("WHEEL_PKG_DIR"))
        if sys.base_prefix == "/usr":
            dirs.append("/usr/share/python-wheels")
        return [os.path.normpath(w) for d in dirs for w in sorted(glob.glob(os.path.join(glob.escape(d), "pip-*.whl")))]

    answer.update(
        prefix=sys.prefix,
        base_prefix=sys.base_prefix,
        implementation=sys.implementation.name,
        full=" ".join(sys.version.split()),
        abi=get("SOABI") or "",
        platform=sysconfig.get_platform(),
        libc=libc(),
        free_threaded=get("Py_GIL_DISABLED") == 1,
        pip=pip(),
        wheels=wheels(),
    )

print("\n" + json.dumps(answer))
