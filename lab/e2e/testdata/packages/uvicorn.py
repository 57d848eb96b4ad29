# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

import importlib
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

module, name = sys.argv[1].split(":")
app = getattr(importlib.import_module(module), name)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(app.routes[self.path]().encode())


HTTPServer((sys.argv[3], int(sys.argv[5])), Handler).serve_forever()
