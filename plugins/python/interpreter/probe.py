# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Tells what an interpreter is, as one line of JSON. Python 3.4 must be able to read it.
import sys, json, os, sysconfig

v = sys.version_info
answer = {"version": "%d.%d.%d" % v[:3], "executable": sys.executable or ""}
if v[3] != "final":
    answer["version"] += {"alpha": "a", "beta": "b", "candidate": "rc"}[v[3]] + str(v[4])

if v >= (3, 8):
    get = sysconfig.get_config_var

    def libc():
        try:
            text = os.confstr("CS_GNU_LIBC_VERSION")
        except (AttributeError, ValueError, OSError):
            text = None
        return text or ("musl" if "musl" in str(get("HOST_GNU_TYPE")) + str(get("SOABI")) else "")

    answer.update(
        prefix=sys.prefix,
        base_prefix=sys.base_prefix,
        implementation=sys.implementation.name,
        full=" ".join(sys.version.split()),
        abi=get("SOABI") or "",
        platform=sysconfig.get_platform(),
        libc=libc(),
        free_threaded=get("Py_GIL_DISABLED") == 1,
    )

print("\n" + json.dumps(answer))
