// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command dataset shows a volume with a quota: it is filled, outlives its job, is rolled back and restored. Its
// pool is a file. It runs a Nomad agent of its own and removes everything at the end: go tool mage demo:dataset.
package main

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/demo/stage"
)

//go:embed demo.nomad.hcl
var withVolume string

//go:embed scratch.nomad.hcl
var withScratch string

func main() {
	d := &demo{}
	stage.Demo{
		Plugins: map[string]string{"exec-lite": `state_dir = "${state_dir}"`, "dataset": ""},
		Dataset: "zfs-fuse",
		OnHost:  true,
		Play: func(ctx context.Context, a agent.Agent) error {
			d.agent = a
			return stage.InOrder(ctx, d.created, d.scratch, d.filled, d.comesBack, d.rolledBack, d.restored)
		},
	}.Main()
}

type demo struct {
	agent agent.Agent
	made  chan error // of the volume, once
}

// created asks for a volume, and does not wait for it.
func (d *demo) created(ctx context.Context) error {
	stage.Say("A volume of 32 MiB, in a class that the operator of the node has named \"fast\"")
	d.made = make(chan error, 1)
	made, err := d.shell("nomad volume create data.volume.hcl")
	if err != nil {
		return err
	}
	go func() {
		_, err := made(ctx)
		d.made <- err
	}()
	stage.Note("(Nomad takes some 9 s for that, with any plugin. Meanwhile:)")
	return nil
}

// scratch shows that what one job has had is empty for the next.
func (d *demo) scratch(ctx context.Context) error {
	stage.Say("Scratch of 64 MiB, which is a device: device \"dataset\" {}. Two jobs fill it, one after the other")
	for range 2 {
		job, err := stage.Submit(d.agent, withScratch)
		if err != nil {
			return err
		}
		if err := d.ends(ctx, job); err != nil {
			return err
		}
	}
	return nil
}

// filled writes until the limit.
func (d *demo) filled(ctx context.Context) error {
	err := stage.Until(ctx, "the volume", func() (bool, error) {
		select {
		case err := <-d.made:
			return true, err
		default:
			return false, nil
		}
	})
	if err != nil {
		return err
	}
	stage.Say("The volume is ready. A job fills it up to its quota; the file system has gigabytes left")
	return d.batch(ctx, "fill", `dd if=/dev/urandom of=/data/first bs=1M count=8 2>&1 | tail -n 1
cksum /data/first
dd if=/dev/zero of=/data/rest bs=1M 2>&1 | grep -v records`)
}

// comesBack has another job read what the first has written.
func (d *demo) comesBack(ctx context.Context) error {
	stage.Say("That job has ended and is purged. Another one finds the files")
	return d.batch(ctx, "again", "ls -s --block-size=M /data | tail -n +2; cksum /data/first; rm /data/rest")
}

// rolledBack brings back what a job has spoilt.
func (d *demo) rolledBack(ctx context.Context) error {
	stage.Say("A snapshot is made. Then a job spoils the file")
	if _, err := d.run(ctx, "nomad-device-dataset snapshot data good"); err != nil {
		return err
	}
	job, err := stage.Submit(d.agent, d.job("spoil", "service", "echo spoilt | tee /data/first; exec sleep 600"))
	if err != nil {
		return err
	}
	if err := job.Wait(ctx, api.AllocClientStatusRunning); err != nil {
		return err
	}
	if err := d.said(ctx, job, "spoilt"); err != nil {
		return err
	}
	stage.Note("While that job has the volume, a rollback is refused:")
	if out, err := d.run(ctx, "nomad-device-dataset rollback data good"); err == nil {
		return fmt.Errorf("the volume was rolled back under a job: %s", out)
	}
	stage.Note("Once it is stopped:")
	if err := d.stop(ctx, job); err != nil {
		return err
	}
	if _, err := d.run(ctx, "nomad-device-dataset rollback data good"); err != nil {
		return err
	}
	return d.batch(ctx, "check", "cksum /data/first")
}

// restored takes the volume out of the trash.
func (d *demo) restored(ctx context.Context) error {
	stage.Say("The volume is deleted by mistake. The trash still has it")
	for _, command := range []string{
		"nomad volume delete -type host data-id",
		"nomad-device-dataset trash list",
		"nomad-device-dataset trash restore data >again.json",
		"nomad volume create again.json",
	} {
		if _, err := d.run(ctx, command); err != nil {
			return err
		}
	}
	return d.batch(ctx, "restored", "cksum /data/first")
}
