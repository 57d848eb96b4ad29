# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A stand-in for the package of this name, as for uvicorn.


class FastAPI:
    def __init__(self):
        self.routes = {}

    def get(self, path):
        return lambda route: self.routes.setdefault(path, route)
