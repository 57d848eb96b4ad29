# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# A web server, with its program in the job itself. It needs only Python's standard
# library, so no environment is built.
#   nomad job run web.nomad.hcl      (or: go tool mage lab:run plugins/python/example/web.nomad.hcl)
#   nomad service info python-web    prints its address: open http://ADDRESS/
#   nomad job stop python-web        stops it gracefully, as its log shows
job "python-web" {
  group "web" {
    network {
      port "http" {} # a free port, passed to the program in variables
    }

    service {
      name     = "python-web"
      port     = "http"
      provider = "nomad"

      check {
        type     = "http"
        path     = "/"
        interval = "10s"
        timeout  = "2s"
      }
    }

    task "web" {
      driver      = "python"
      kill_signal = "SIGTERM"

      config {
        python = ">=3.8" # the newest matching version on the node

        code = <<EOF
import html, os, platform, signal, sys, threading
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = """<!DOCTYPE html>
<meta charset="utf-8">
<title>Python under Nomad</title>
<h1>Python {version} under Nomad</h1>
<table>
{rows}
</table>
"""


def facts():
    yield "Interpreter", platform.python_implementation() + " " + sys.version
    yield "Program", sys.executable
    yield "Environment", sys.prefix if sys.prefix != sys.base_prefix else "none"
    yield "Host", platform.platform()
    for name in "JOB_NAME", "TASK_NAME", "ALLOC_ID", "ADDR_http", "CPU_LIMIT", "MEMORY_LIMIT":
        yield "NOMAD_" + name, os.environ.get("NOMAD_" + name, "")
    yield "Time", datetime.now().isoformat(" ", "seconds")


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        rows = "\n".join(f"<tr><th align=left>{name}<td>{html.escape(text)}" for name, text in facts())
        body = PAGE.format(version=platform.python_version(), rows=rows).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


# Nomad stops a task with the job's kill_signal. All threads block the signal, so only
# sigwait below receives it, and no request is interrupted.
stops = {signal.SIGTERM, signal.SIGINT}
signal.pthread_sigmask(signal.SIG_BLOCK, stops)

server = ThreadingHTTPServer((os.environ["NOMAD_IP_http"], int(os.environ["NOMAD_PORT_http"])), Page)
threading.Thread(target=server.serve_forever).start()
print("serving on http://" + os.environ["NOMAD_ADDR_http"])
print("stopping on", signal.Signals(signal.sigwait(stops)).name)
server.shutdown()
EOF
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
