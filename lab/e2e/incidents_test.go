// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

// prepareNode prepares a bare Debian with Nomad as an operator's node.
const prepareNode = `
mkdir -p /opt/nomad/data/alloc /var/lib/prometheus/node-exporter
mount -o loop /srv/disk /opt/nomad/data/alloc
rmdir /opt/nomad/data/alloc/lost+found
chmod 711 /opt/nomad/data/alloc
# Debian's rpm database is empty
printf '#!/bin/sh\nexec /usr/bin/rpm --nodeps "$@"\n' >/usr/local/bin/rpm
chmod 755 /usr/local/bin/rpm
systemctl start nomad
`

// eventually has shell functions for the incidents. `eventually COMMAND` retries the command for up to a minute.
const eventually = only + `
eventually() {
  local i
  for i in $(seq 300); do eval "$1" >/dev/null 2>&1 && return; sleep 0.2; done
  echo "never: $1" >&2
  return 1
}
newest() { nomad job allocs -t '{{(index . 0).ID}}' "$1"; }
story() { nomad alloc status "$(newest "$1")"; }
job() { # name, driver, config, resources; the variable attempts has the number of restarts
  cat >"$1.nomad.hcl" <<END
job "$1" {
  type = "batch"
  group "g" {
    restart { 
      attempts = ${attempts-3}
      interval = "10m"
      delay    = "2s"
      mode     = "fail" 
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "t" {
      driver       = "$2"
      kill_timeout = "2s"
      config {
        $3
      }
      resources {
        cpu    = 50
        memory = 64
        ${4-}
      }
    }
  }
}
END
  nomad job stop -purge -detach "$1" >/dev/null || true
  nomad job run -detach "$1.nomad.hcl"
}
noisy() {
  job noisy exec-lite 'command = "sh"
    args = ["-c", "while :; do seq 2000; sleep 0.2; done"]'
  eventually 'story noisy | grep Started'
}
# restarts an agent whose driver stays unhealthy: systemctl would wait
unsettled() { systemctl stop nomad; timeout 3 systemctl start nomad || true; }
plugins=/opt/nomad/data/plugins
block=/etc/nomad.d/nomad-driver-exec-lite.hcl
`

// runsOn checks that the task is the same process as before.
const runsOn = `
eventually 'story noisy | grep Re-attached'
[ "$(only '^sh -c while :; do seq')" = "$(cat /run/task)" ]
journalctl -u nomad | grep 'replaced the supervisor of another version'
! story noisy | grep -E 'Lost|Terminated|Restarting'`

// incidents maps names to scripts. The comments of a page refer to the names. A script causes a fault on an operator's
// node, or repairs a fault that no command of the page repairs, and waits until the effect is visible.
var incidents = map[string]string{
	"hello has ended": `eventually 'nomad job allocs -t "{{(index . 0).ClientStatus}}" hello | grep complete'`,

	"a task runs": `
noisy
only '^sh -c while :; do seq' >/run/task`,

	"the task runs on with the newer version": runsOn,
	"the task runs on with the older version": runsOn + `
nomad job stop -purge -detach noisy`,

	"the plugin is installed again": `
dpkg -i nomad-driver-exec-lite_0.1.0-1_amd64.deb
systemctl restart nomad`,

	"a task is killed at its memory limit": `
nomad job stop -purge -detach oom >/dev/null || true
nomad job run -detach /usr/share/doc/nomad-driver-exec-lite/example/oom.nomad.hcl
eventually 'story oom | grep OOM'
if grep -q prometheus /etc/nomad.d/*; then
  eventually "nomad operator api '/v1/metrics?format=prometheus' | grep allocs_oom_killed"
fi`,

	"a stick is plugged in": `
install -m 0755 nomad-device-usb nomad-driver-python $plugins
./usb-stick /srv/usb >/dev/null 2>&1 </dev/null & echo $! >/run/stick
cat >/etc/nomad.d/usb.hcl <<'END'
plugin "nomad-device-usb" {
  config {
    root       = "/srv/usb"
    shadow_dir = "/srv/nodes"
    rescan     = "1s"
    grace      = "2s"
    device "zigbee" {
      id = "10c4:ea60"
    }
  }
}
END
echo 'plugin "nomad-driver-python" {}' >/etc/nomad.d/python.hcl
systemctl restart nomad
eventually "nomad node status -self -verbose | grep '^Device Group .*zigbee'"`,

	"the plugin is killed": `
noisy
# the newest plugin: an agent that was interrupted while it started leaves a plugin, which exits by itself
kill -9 "$(pgrep -n -f "^$plugins/nomad-driver-exec-lite")"
eventually 'story noisy | grep Re-attached'`,

	"a library is missing": `
mv $plugins/nomad-device-usb /srv
printf '#!/bin/sh\necho "libusb-1.0.so.0: cannot open shared object file" >&2\nexit 127\n' >$plugins/nomad-device-usb
chmod 755 $plugins/nomad-device-usb
! systemctl restart nomad 2>/dev/null
journalctl -u nomad | tail -n 20 | grep "Failed to read any lines from plugin's stdout"
mv /srv/nomad-device-usb $plugins`,

	"a binary for another machine": `
printf '\177ELF\002\001\001\000' >/srv/other
head -c 56 /dev/zero >>/srv/other
rm $plugins/nomad-driver-python
install -m 0755 /srv/other $plugins/nomad-driver-python
! systemctl restart nomad 2>/dev/null
journalctl -u nomad | tail -n 20 | grep 'exec format error'
install -m 0755 nomad-driver-python $plugins`,

	"a misspelt option": `
cp $block /srv/block
printf 'plugin "nomad-driver-exec-lite" {\n  config {\n    denied_host_uid = "0"\n  }\n}\n' >$block
nomad config validate /etc/nomad.d
! systemctl restart nomad 2>/dev/null
cp /srv/block $block`,

	"the plugin has no block": `
rm $block
systemctl restart nomad
job waits exec-lite 'command = "true"'
eventually 'nomad job status waits | grep "missing drivers"'
nomad job stop -purge waits`,

	"the node has no Python": `
mv /usr/bin/python3.11 /srv
unsettled
eventually 'nomad node status -self -verbose | grep "^python .*no Python interpreter"'`,

	// run a task, because a supervisor without tasks would exit and remove the directory
	"others may write to the state directory": `
mv /srv/python3.11 /usr/bin
noisy
chmod 777 /run/outrider
eventually 'nomad node status -self -verbose | grep "^exec-lite .*other users may write"'`,

	"a job waits for a stick that is not plugged in": `
kill "$(cat /run/stick)"
eventually "! nomad node status -self -verbose | grep '^Device Group .*zigbee'"
job zigbee exec-lite 'command = "sleep"
args = ["infinity"]' 'device "zigbee" {}'
eventually 'nomad job status zigbee | grep "missing devices"'`,

	"the stick is plugged in again": `
./usb-stick /srv/usb >/dev/null 2>&1 </dev/null & echo $! >/run/stick
eventually 'nomad job allocs -t "{{(index . 0).ClientStatus}}" zigbee | grep running'
nomad job status zigbee | tail -n 1`,

	"a package index does not answer": `
python3 -c 'import socket, time
s = socket.create_server(("127.0.0.1", 8999))
time.sleep(3600)' >/dev/null 2>&1 </dev/null & echo $! >/run/index
job report python 'code = "import requests"
requirements = ["requests"]
index_url = "http://127.0.0.1:8999/simple"'
eventually 'story report | grep "building it"'
nomad job allocs -t '{{(index . 0).ClientStatus}}' report | grep pending`,

	"a job for a Python that the node does not have": `
kill "$(cat /run/index)"
nomad job stop -purge report
job newest python 'code = "print(1)"
python = ">=3.14"'
eventually 'story newest | grep "Driver Failure"'`,

	"the node has no uv": `
mv /usr/local/bin/uv /srv
unsettled
eventually 'nomad node status -self -verbose | grep "^python .*found no uv"'`,

	"a task ends while nothing watches it": `
noisy
systemctl stop nomad
main=$(only '^sh -c while :; do seq')
kill -9 $(pgrep -f '^outrider-supervisor [a-z]* /run/outrider/exec-lite/') $main
eventually "[ ! -e /proc/$main ]"
systemctl start nomad
eventually 'story noisy | grep Lost'`,

	"the disk is full": `
eventually 'nomad job allocs -t "{{(index . 0).ClientStatus}}" noisy | grep running'
fallocate -l "$(df --output=avail -B1 /opt/nomad/data/alloc | tail -n 1)" /opt/nomad/data/alloc/filler || true
eventually 'story noisy | grep "no space left"'`,

	"a task hangs in a file system": `
rm /opt/nomad/data/alloc/filler
job stuck exec-lite 'command = "sh"
args = ["-c", "while :; do date >local/f; sleep 0.1; done"]'
eventually 'story stuck | grep Started'
sleep 1
fsfreeze -f /opt/nomad/data/alloc
eventually 'ps -eo stat=,args= | grep "^D.* while :; do date"'
nomad job stop -detach stuck
eventually 'journalctl -u nomad | grep "failed to kill task.*did not die within"'`,

	"the file system answers": `
fsfreeze -u /opt/nomad/data/alloc
eventually 'nomad job allocs -t "{{(index . 0).ClientStatus}}" stuck | grep complete'`,

	"the agent has no cgroups": `
for job in noisy zigbee; do nomad job stop $job; done
systemctl stop nomad
umount -R -l /sys/fs/cgroup
systemctl start nomad
job bare exec-lite 'command = "true"'
eventually 'journalctl -u nomad | grep "Limits are not enforced"'`,
}
