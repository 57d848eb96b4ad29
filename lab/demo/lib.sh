# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# shellcheck shell=sh

# Functions of the demos' scripts. Each act has its own shell, where the tasks run, in a directory with the demo's job
# files. The shell has nomad and the agent's plugins on its PATH.

# fold_to PREFIX breaks lines to the width of the terminal.
fold_to() { fold -s -w $((COLUMNS - 5)) | sed "s/^/$1/"; }

# say TITLE begins an act.
say() {
	echo
	echo "$*" | fold_to '   ' | sed '1s/^   /== /'
}

# note TEXT prints a line of an act.
note() { echo "$*" | fold_to '   '; }

# show prints a command's output.
show() { fold -s -w $((COLUMNS - 8)) | sed 's/^/     | /'; }

fail() {
	echo "$*" >&2
	exit 1
}

now() { date +%s%N; }

# begin sets the time from which took counts; run also sets it.
begin() { now >"began"; }

# took prints the time since the last begin or run.
took() { echo $((($(now) - $(cat began)) / 100000000)) | sed 's/.$/.& s/; s/^\./0./'; }

# run COMMAND shows a command and its output.
run() {
	note "\$ $1"
	begin
	if eval "$1" >printed 2>&1; then status=0; else status=$?; fi
	show <printed
	return $status
}

# refused COMMAND is like run, for a command that must fail.
refused() {
	if run "$1"; then fail "the command did not fail: $1"; fi
}

# expect PATTERN COMMAND waits until a command prints a matching line, for at most two minutes.
expect() {
	tries=0
	until eval "$2" 2>&1 | grep -q -e "$1"; do
		tries=$((tries + 1))
		[ $tries -lt 600 ] || fail "no line matches $1 in the output of: $2: $(eval "$2" 2>&1 | tail -n 5)"
		[ $((tries % 50)) != 15 ] || note "(waiting for: $1)"
		sleep 0.2
	done
}

# follow PATTERN COMMAND waits like expect, but for new lines only, and shows them up to the matching one.
follow() {
	touch seen
	expect "$1" "$2 2>/dev/null | tail -n +$(($(wc -l <seen) + 1)) | tee new"
	sed "/$1/q" new | tee -a seen | show
}

# skip COMMAND makes the next follow ignore the lines that the command prints now.
skip() { eval "$1" >seen; }

# state JOB prints the states of its allocations.
state() { nomad job allocs -t '{{range .}}{{println .ClientStatus}}{{end}}' "$1"; }

# events JOB prints the time, the type and the message of each event of its tasks.
events() {
	nomad job allocs -t '{{range .}}{{range .TaskStates}}{{range .Events}}{{.Time}} {{.Type}}: {{println .DisplayMessage}}{{end}}{{end}}{{end}}' \
		"$1" | sed '/^$/d; s/rpc error: code = Unknown desc = //'
}

# batch JOB ARGUMENT… runs a batch job to its end, shows what it prints, and purges it.
batch() {
	job=$1
	shift
	nomad job run -detach "$@" >/dev/null
	expect complete "state $job"
	run "nomad logs -job $job"
	nomad job stop -purge "$job" >/dev/null
}

# ours lists the processes of the demo: the agent, its descendants, and the tasks, which have the mark or a directory of
# the agent in their arguments.
ours() {
	ps -ww -eo pid=,ppid=,args= | awk '
		{ parent[$1] = $2; line[$1] = $0 }
		$1 > 1 && index($0, ENVIRON["DEMO_AGENT"]) || index($0, ENVIRON["NOMAD_VAR_state"]) ||
			index($0, ENVIRON["NOMAD_VAR_mark"]) { mine[$1] = 1 }
		END {
			do {
				more = 0
				for (p in parent) if (!(p in mine) && parent[p] in mine) { mine[p] = 1; more = 1 }
			} while (more)
			for (p in mine) print line[p]
		}' | sort -n
}

# plugin NAME prints the process id of a plugin.
plugin() { ours | awk -v name="/$1\$" '$0 ~ name { print $1; exit }'; }

# kill_plugin NAME kills a plugin, and waits until Nomad has started it again.
kill_plugin() {
	before=$(plugin "$1")
	run "kill -9 $before"
	expect new "plugin $1 | grep -vx $before | sed s/.*/new/"
	note "Nomad has started another after $(took)."
}

# forest shows the processes, coloured by their role.
forest() {
	ps -ww -o pid,ppid,rss,args --forest -p "$(ours | awk '{ printf "%s%s", comma, $1; comma = "," }')" |
		cut -c "1-$COLUMNS" | awk -v color="$COLOR" '
		function paint(code, text) { return color ? "\033[" code "m" text "\033[0m" : text }
		NR == 1 { print; next }
		/ outrider-supervisor / { print paint(36, $0); next }
		/\/nomad-d[a-z]*-[a-z-]*$/ { print paint(32, $0); next }
		/nomad[^ ]* (executor|logmon)/ { print paint(31, $0); next }
		/nomad[^ ]* agent/ { print paint(34, $0); next }
		{ print paint(33, $0) }
		END {
			if (color) print "   " paint(34, "agent") " " paint(31, "helper") " " paint(32, "plugin") " " \
				paint(36, "supervisor") " " paint(33, "task")
		}'
}
