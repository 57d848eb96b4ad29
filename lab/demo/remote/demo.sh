# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# shellcheck shell=sh

# A task on an SSH host keeps running when its node is drained, and when the next node is killed: another node takes
# over the process. The host is an SSH server on this machine. The file last has the counter's allocation, node, node
# id, process and count.

# placed prints the id, node and node id of each running allocation except $alloc.
placed() {
	nomad job allocs -t '{{range .}}{{println .ID .NodeName .NodeID .DesiredStatus .ClientStatus}}{{end}}' counter |
		sed -n 's/ run running$//p' | grep -v "^$alloc"
}

# anew ALLOC prints new lines of the counter from an allocation's output: COUNT on HOST, pid PID.
anew() { nomad alloc logs "$1" | awk -v pid="$pid" -v count="$count" '$NF != pid || $1 > count'; }

# next LINES waits for another allocation, shows the first new lines of its output, and writes last.
next() {
	expect remote placed
	read -r alloc_now node_now id_now <<-END
		$(placed | head -n 1)
	END
	expect enough "[ \$(anew $alloc_now | wc -l) -lt $1 ] || echo enough"
	anew "$alloc_now" | head -n "$1" | tee lines | sed "s/^/$node_now | /" | show
	echo "$alloc_now $node_now $id_now $(awk 'END { print $NF, $1 }' lines)" >last
}

# gone waits for the end of a process on the host.
gone() {
	expect gone "[ -e /proc/$1 ] || echo gone"
	note "Process $1 has ended."
}

# taken_over is like next, but fails if the counter was restarted.
taken_over() {
	was=$pid
	next 3
	read -r alloc node id pid count <last
	[ "$pid" = "$was" ] || fail "the counter was started again"
	note "Node $node has it now. The count continues: it is process $pid, as before."
}

alloc=none node='' id='' pid='' count=''
[ ! -e last ] || read -r alloc node id pid count <last

say 'A counter runs on host "box", which nodes node-2 and node-3 reach by SSH'
alloc=none pid=''
run "nomad job run -detach demo.nomad.hcl"
next 3
read -r alloc node id pid count <last
note "Node $node has started it. On the host it is process $pid."

say "Node $node is drained"
echo "$id" >drained
run "nomad node drain -enable -yes -detach -deadline 1m $id"
taken_over

say "Node $node is lost: kill -9 of its agent. The drained node is eligible again"
run "nomad node drain -disable -yes $(cat drained)"
run "kill -9 $(sed -n 's/.*"pid": \([0-9]*\).*/\1/p' "$DEMO_AGENT/nodes/$node/agent.json")"
note "(The server waits for the node's next heartbeat: here for some seconds, by default for half a minute.)"
taken_over

say "nomad alloc stop ends the process, and Nomad starts another"
run "nomad alloc stop -detach $alloc"
was=$pid
next 1
gone "$was"
read -r alloc node id pid count <last
[ "$pid" != "$was" ] || fail "the counter was not started again"
note "Process $pid counts from 1."

say "nomad job stop"
run "nomad job stop -detach counter"
gone "$pid"
note "Nothing runs on the host."
