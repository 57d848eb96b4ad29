# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# Like uvicorn.py, a stand-in for the package of the same name.


class FastAPI:
    def __init__(self):
        self.routes = {}

    def get(self, path):
        return lambda route: self.routes.setdefault(path, route)
