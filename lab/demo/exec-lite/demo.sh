# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# shellcheck shell=sh

# The processes behind exec-lite's tasks. When these are killed, the tasks continue, and exit codes stay exact.

three() {
	run "nomad job run -detach -var driver=$1 demo.nomad.hcl"
	expect 3 "nomad job status demo-$1 | grep -c ' run .* running '"
	note "3 tasks run after $(took)."
}

# tasks prints the tasks' process ids. It skips a child that looks like its parent, before it executes its program.
tasks() {
	ours | awk '$3 " " $4 == "/bin/sh -c" && index($0, ENVIRON["NOMAD_VAR_mark"]) {
		task[$1] = 1
		if (!($2 in task)) print $1
	}'
}

supervisor() { ours | awk '$3 " " $4 == "outrider-supervisor supervise" { print $1; exit }'; }

# helpers prints whether a plugin and a supervisor run, and whether they are new.
helpers() {
	p=$(plugin nomad-driver-exec-lite)
	s=$(supervisor)
	[ -z "$p" ] || [ -z "$s" ] || echo "plugin $([ "$p" = "$plugin" ] || echo new)," \
		"supervisor $([ "$s" = "$supervisor" ] || echo new)."
}

# exits prints the events of tasks that have ended since a time.
exits() { events demo-exec-lite | awk -v since="$1" '/ Terminated: / && $1 > since { sub(/^[0-9]* /, ""); print }'; }

# fault COMMAND STATE kills helpers, and waits until they are in a state. Tasks that are not killed must continue.
fault() {
	before=$(tasks)
	since=$(now)
	run "$1"
	expect "$2" helpers
	case $1 in *TERM*)
		expect Terminated "exits $since"
		exit=$(exits "$since")
		note "$exit"
		before=$(echo "$before" | sed 1d)
		case $exit in
		*'Exit Code: 7' | *'Exit Code: 7,'*) ;;
		*'task is lost'*) note "The machine's init reaped the task before the new supervisor ran: its code is unknown." ;;
		*) fail "exit code 7 was not reported" ;;
		esac
		;;
	esac
	forest
	for pid in $before; do
		tasks | grep -qx "$pid" || fail "task $pid did not survive"
	done
	# shellcheck disable=SC2086 # in one line
	note Tasks that continued, with the same pids: $before
}

plugin=$(plugin nomad-driver-exec-lite)
supervisor=$(supervisor)
first=$(tasks | head -n 1)

say "Three tasks with raw_exec, Nomad's own driver"
three raw_exec
forest
note "Two helpers for each task: a logmon for its output, an executor to wait for it."
nomad job stop -purge demo-raw_exec >/dev/null

say "The same three tasks with exec-lite"
three exec-lite
expect "^0$" "ours | grep -cE 'nomad[^ ]* (executor|logmon)' || true"
forest
note "One plugin, one supervisor with its collector, and the tasks. A hundred tasks need the same three."

say "kill -9 of the plugin; before the next one starts, the first task exits with code 7"
fault "kill -9 $plugin; kill -TERM $first" "plugin new, supervisor ."
note "The new plugin found its supervisor again."

say "kill -9 of the supervisor, the parent of all tasks"
fault "kill -9 $supervisor" "plugin , supervisor new."
note "The new supervisor has adopted the tasks."

say "kill -9 of both, and the first task exits with code 7 while neither runs"
# (with -both)
fault "kill -9 $plugin $supervisor; kill -TERM $first" "plugin new, supervisor new."
note "The new supervisor has adopted the tasks."
