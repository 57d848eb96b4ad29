// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command dataset shows a volume with a quota: it is filled, outlives its job, is rolled back and restored. Its
// pool is a file. It runs a Nomad agent of its own and removes everything at the end: go tool mage demo:dataset.
package main

import (
	"context"
	"embed"
	"fmt"
	"slices"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/demo/stage"
)

//go:embed *.hcl
var files embed.FS

func main() {
	stage.Demo{
		Plugins: map[string]string{"exec-lite": `state_dir = "${state_dir}"`, "dataset": ""},
		Dataset: "zfs-fuse",
		OnHost:  true,
		Play: func(ctx context.Context, a agent.Agent) error {
			return (&stage.Script{Agent: a, Files: files}).Play(ctx, acts...)
		},
	}.Main()
}

// The plugin's commands by hand read the operator's file.
const (
	classes = " -file $HOST_VOLUME_PLUGINS/dataset.hcl"
	goOn    = "nomad-device-dataset rollback data good" + classes
)

var acts = []stage.Act{
	{Say: `A volume of 32 MiB, in a class that the operator of the node has named "fast"`, Steps: []stage.Step{
		{Run: "nomad volume create data.volume.hcl >created 2>&1 &"},
		{Note: "(Nomad takes some 9 s for that, with any plugin. Meanwhile:)"},
	}},
	{Say: `Scratch of 64 MiB, which is a device: device "dataset" {}. Two jobs fill it, one after the other`,
		Steps: slices.Concat(ends("scratch", "scratch.nomad.hcl"), ends("scratch", "scratch.nomad.hcl"))},
	{Say: "The volume. A job fills it up to its quota; the file system has gigabytes left", Steps: append([]stage.Step{
		{Run: "cat created; nomad volume status -type host", Quiet: true, Expect: "ready"},
	}, batch("fill", `dd if=/dev/urandom of=/data/first bs=1M count=8 2>&1 | tail -n 1
cksum /data/first
dd if=/dev/zero of=/data/rest bs=1M 2>&1 | grep -v records`)...)},
	{Say: "That job has ended and is purged. Another one finds the files",
		Steps: batch("again", "ls -s --block-size=M /data | tail -n +2; cksum /data/first; rm /data/rest")},
	{Say: "A snapshot is made. Then a job spoils the file", Steps: slices.Concat([]stage.Step{
		{Run: "nomad-device-dataset snapshot data good" + classes},
		{Run: run("spoil", "echo spoilt | tee /data/first; exec sleep 600"), Quiet: true},
		{Run: "nomad logs -job spoil", Expect: "spoilt"},
		{Note: "While that job has the volume, a rollback is refused:"},
		{Run: goOn, Fails: true},
		{Note: "Once it is stopped:"},
		{Run: "nomad job stop spoil", Quiet: true},
		{Run: "nomad job status spoil", Quiet: true, Expect: "complete"},
		{Run: goOn},
	}, batch("check", "cksum /data/first"))},
	{Say: "The volume is deleted by mistake. The trash still has it", Steps: append([]stage.Step{
		{Run: "nomad volume delete -type host $(nomad volume status -type host -t '{{range .}}{{.ID}}{{end}}')"},
		{Run: "nomad-device-dataset trash list" + classes},
		{Run: "nomad-device-dataset trash restore data" + classes + " >again.json"},
		{Run: "nomad volume create again.json"},
	}, batch("restored", "cksum /data/first")...)},
}

// run is the command that runs a job which has the volume.
func run(name, script string) string {
	return fmt.Sprintf("nomad job run -detach -var name=%s -var 'script=%s' demo.nomad.hcl", name, script)
}

// batch runs such a job to its end, and shows what it prints.
func batch(name, script string) []stage.Step {
	return append([]stage.Step{{Run: run(name, script), Quiet: true}}, ended(name)...)
}

// ends runs the job of a file to its end, and shows what it prints.
func ends(name, file string) []stage.Step {
	return append([]stage.Step{{Run: "nomad job run -detach " + file, Quiet: true}}, ended(name)...)
}

func ended(job string) []stage.Step {
	return []stage.Step{
		{Run: "nomad job status " + job, Quiet: true, Expect: "complete"},
		{Run: "nomad logs -job " + job},
		{Run: "nomad job stop -purge " + job, Quiet: true},
	}
}
