# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# shellcheck shell=sh disable=SC2154 # set by the runner

# A stick is plugged in, used, pulled out and plugged in again. A job simulates the stick, unless -id names a real
# stick, which the user plugs.

output="nomad logs -job talker"

devices() {
	nomad node status -self -t '{{range .NodeResources.Devices}}{{range .Instances}}{{println .ID .Healthy .HealthDescription "end"}}{{end}}{{end}}'
}

# plugged prints whether the kernel, or its simulation, lists the stick.
plugged() {
	sys=$NOMAD_VAR_state/usb/sys
	[ -z "$DEMO_REAL" ] || sys=/sys
	for device in "$sys"/bus/usb/devices/*; do
		cat "$device/idVendor" "$device/idProduct" 2>/dev/null || true
	done | tr '\n' : | grep -q "$NOMAD_VAR_id:" && echo in || echo out
}

# plug in|out plugs the simulated stick in or out; for a real one it asks the user to do so.
plug() {
	case "$DEMO_REAL $1" in
	" in") run "nomad job run -detach stick.nomad.hcl" ;;
	" out") run "nomad job stop -detach stick" ;;
	*) note ">>> Please plug the stick $NOMAD_VAR_id $1 now." ;;
	esac
	expect "$1" plugged
	begin
}

say 'A job that requests its stick by name: device "zigbee" {}'
nomad job stop -purge stick >/dev/null 2>&1 || true
[ -z "$DEMO_REAL" ] || plug out
expect "^0$" "devices | grep -c ' true ' || true"
run "nomad job run -detach talker.nomad.hcl"
expect "missing devices" "nomad job status talker"
run "nomad job status talker | grep Constraint"
note "No stick is plugged in: the job waits."

say "The stick is plugged in"
plug in
[ -n "$DEMO_REAL" ] || note "(It is simulated: the job is the stick, and is stopped to unplug it.)"
note "(An agent reports a change of its node to the servers after 5 to 10 s. This delay is Nomad's.)"
expect " true " devices
note "After $(took), the node lists the stick."
expect "I am" "$output"
note "The job was placed, and runs after $(took). Its output:"
follow "hello 2" "$output"

say "The stick is pulled out while the task uses it"
plug out
follow "no stick" "$output"
expect unplugged devices
note "After $(took), the node lists the stick as unhealthy: unplugged."

say "And plugged in again"
plug in
skip "$output"
follow "-> stick" "$output"
note "The same task continues, with the same path, although the kernel's device is a new one."

say "nomad alloc restart: Nomad does not call the plugin again"
skip "$output"
run "nomad alloc restart $(nomad job allocs -t '{{range .}}{{.ID}}{{end}}' talker)"
follow "hello 1 " "$output"

say "kill -9 of the plugin"
kill_plugin nomad-device-usb
skip "$output"
follow "-> stick" "$output"
note "The task continued."
