# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# shellcheck shell=sh

# Python programs: a web page, an environment that is built and then found in the cache, a plugin that is killed during
# a build, and an exception. The jobs are in plugins/python/example.

submit() { run "nomad job run -detach $1.nomad.hcl"; }

# happened JOB shows its task's events, except setup events.
happened() { events "$1" | sed -E '/ (Received|Task Setup|Started): /d; s/^[0-9]+ //' | show; }

# started JOB shows the time from the creation of the task's directory to the start of its process, including templates.
started() {
	note "The program started $(events "$1" | awk '/ Task Setup: /{ from = $1 } / Started: /{ to = $1 }
		END { printf "%.2f", (to - from) / 1e9 }') s after the task's directory was created."
}

# completes JOB EVENT waits for the end of a batch job and for an event of the driver, and shows both.
completes() {
	expect complete "state $1"
	expect "$2" "events $1"
	happened "$1"
	started "$1"
	run "nomad logs -job $1"
}

# again JOB purges a batch job, so Nomad runs it again.
again() { nomad job stop -purge "$1" >/dev/null 2>&1 || true; }

say "A web page: the whole program is in the job"
has() { nomad node status -self -t "{{index .Attributes \"driver.python.$1\"}}"; }
note "The node's tasks run on Python $(has default) unless they name another; uv $(has uv.version) builds environments."
submit web
expect running "state python-web"
expect http "nomad service info -t '{{range .}}http://{{.Address}}:{{.Port}}/{{end}}' python-web"
url=$(nomad service info -t '{{range .}}http://{{.Address}}:{{.Port}}/{{end}}' python-web)
export url
expect Interpreter "python3 -c 'import os, urllib.request as r
print(r.build_opener(r.ProxyHandler({})).open(os.environ[\"url\"]).read().decode())' | tee page"
note "$url:"
grep -E '<h1>|Interpreter|ALLOC_ID' page | show
started python-web
run "nomad job stop -detach python-web"
expect complete "state python-web"
run "nomad logs -job python-web"

say "A job with a locked dependency that is part of the job: nothing is downloaded"
again wheelhouse
submit wheelhouse
completes wheelhouse "built in"

say "The same job again"
again wheelhouse
submit wheelhouse
completes wheelhouse "cache hit"

say "Another environment (for a script that lists its requirements), and kill -9 of the plugin while it builds"
again inline
plugin=$(plugin nomad-driver-python)
# shellcheck disable=SC2154 # set by the runner
(
	until [ -n "$(ls "$NOMAD_VAR_state/environments/builds")" ]; do :; done
	kill -9 "$plugin"
	now >killed
) &
submit inline
wait $!
note "Plugin $plugin was killed. Nomad started another, which built the environment again:"
completes inline "built in"
events inline | awk -v killed="$(cat killed)" '/built in/ && $1 < killed { exit 1 }' ||
	fail "the environment was built before the plugin was killed: run the demo again"

say "A program that ends with an exception"
again crash
submit crash
expect failed "state crash"
expect "Python: ModuleNotFoundError: No module named 'requests' (app.py:12)" "events crash"
note "The task's events, as in nomad alloc status and in the web UI:"
happened crash
