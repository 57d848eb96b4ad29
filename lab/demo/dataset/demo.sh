# Copyright (c) The Outrider Authors
# SPDX-License-Identifier: MPL-2.0

# shellcheck shell=sh

# A volume with a quota is filled, outlives its job, is rolled back and restored. Its pool is a file. The plugin's
# commands read the operator's class file.

# shellcheck disable=SC2154 # set by the runner
export CLASSES="$DEMO_VOLUME_PLUGINS/dataset.hcl"

# with NAME SCRIPT runs a batch job that has the volume.
with() { batch "$1" -var "name=$1" -var "script=$2" demo.nomad.hcl; }

say 'A volume of 32 MiB, in a class that the operator of the node has named "fast"'
run "nomad volume create data.volume.hcl >created 2>&1 &"
note "(Nomad takes about 9 s for that, with any plugin. In the meantime:)"

say 'Scratch of 64 MiB, which is a device: device "dataset" {}. Two jobs fill it, one after the other'
batch scratch scratch.nomad.hcl
batch scratch scratch.nomad.hcl

say "The volume. A job fills it up to its quota; the file system has gigabytes left"
expect ready "cat created; nomad volume status -type host"
with fill 'dd if=/dev/urandom of=/data/first bs=1M count=8 2>&1 | tail -n 1
cksum /data/first
dd if=/dev/zero of=/data/rest bs=1M 2>&1 | grep -v records'

say "That job has ended and is purged. Another job finds the files"
with again "ls -s --block-size=M /data | tail -n +2; cksum /data/first; rm /data/rest"

say "A snapshot is taken. Then a job corrupts the file"
# shellcheck disable=SC2016 # shown as a user types it
run 'nomad-device-dataset snapshot data good -file $CLASSES'
nomad job run -detach -var name=spoil -var "script=echo spoilt | tee /data/first; exec sleep 600" demo.nomad.hcl >/dev/null
expect spoilt "nomad logs -job spoil"
run "nomad logs -job spoil"
note "While that job has the volume, a rollback is refused:"
# shellcheck disable=SC2016 # shown as a user types it
refused 'nomad-device-dataset rollback data good -file $CLASSES'
note "Once it is stopped:"
nomad job stop spoil >/dev/null
expect complete "state spoil"
# shellcheck disable=SC2016 # shown as a user types it
run 'nomad-device-dataset rollback data good -file $CLASSES'
with check "cksum /data/first"

say "The volume is deleted by mistake. The trash still has it"
run "nomad volume delete -type host $(nomad volume status -type host -t '{{range .}}{{.ID}}{{end}}')"
# shellcheck disable=SC2016 # shown as a user types it
run 'nomad-device-dataset trash list -file $CLASSES'
# shellcheck disable=SC2016 # shown as a user types it
run 'nomad-device-dataset trash restore data -file $CLASSES >again.json'
run "nomad volume create again.json"
with restored "cksum /data/first"
