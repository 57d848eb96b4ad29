// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command usb shows a USB stick that a task reserves by name, and that is plugged in,
// pulled out and plugged in again. The stick is simulated unless -id names one for the
// user to plug. It runs a Nomad agent of its own and removes everything at the end:
// go tool mage demo:usb.
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/demo/stage"
	"github.com/outrider-dev/outrider/lab/nomad"
)

//go:embed demo.nomad.hcl
var talker string

func main() {
	id := flag.String("id", "", "a real stick, as lsusb writes it (10c4:ea60)")
	flag.Parse()
	d := &demo{stick: stick{id: "10c4:ea60", simulated: *id == ""}}
	if *id != "" {
		if os.Geteuid() != 0 {
			fmt.Fprintln(os.Stderr, "demo: a real stick needs root, which makes its device nodes for the task")
			os.Exit(1)
		}
		defer os.RemoveAll(realNodes)
		d.stick.id = *id
	}
	stage.Demo{
		Plugins: map[string]string{"exec-lite": `state_dir = "${state_dir}"`, "usb": d.stick.config()},
		OnHost:  *id != "",
		Play: func(ctx context.Context, a agent.Agent) error {
			d.agent = a
			return d.acts(ctx)
		},
	}.Main()
}

type demo struct {
	agent agent.Agent
	stick stick
	job   *stage.Job // the talker
	told  int        // bytes of its output that have been shown
}

func (d *demo) acts(ctx context.Context) error {
	return stage.InOrder(ctx, d.waits, d.plugged, d.unplugged, d.pluggedAgain, d.restarted, d.killed)
}

// waits submits the job before there is a stick.
func (d *demo) waits(ctx context.Context) error {
	stage.Say("A job that asks for its stick by name: device \"zigbee\" {}")
	if _, err := d.stick.plug(ctx, d.agent, false); err != nil {
		return err
	}
	err := stage.Until(ctx, "the node to be without it", func() (bool, error) {
		devices, err := nomad.Devices(ctx, d.agent.Client())
		return !slices.ContainsFunc(devices, func(dev nomad.Device) bool { return dev.Healthy }), err
	})
	if err != nil {
		return err
	}
	if err := d.submit(); err != nil {
		return err
	}
	return stage.Until(ctx, "the scheduler's answer", func() (bool, error) {
		evals, _, err := d.agent.Client().Jobs().Evaluations(d.job.ID, nil)
		if err != nil {
			return false, err
		}
		for _, e := range evals {
			for _, m := range e.FailedTGAllocs {
				for why := range m.ConstraintFiltered {
					stage.Note("No stick is plugged in: the job waits (%s).", why)
					return true, nil
				}
			}
		}
		return false, nil
	})
}

func (d *demo) submit() (err error) {
	user := ""
	if i := d.agent.Info(); i.Runtime == agent.Container || agent.Privileged() {
		user = `user = "nobody"`
	}
	d.job, err = stage.Submit(d.agent, strings.Replace(talker, "      USER\n", "      "+user+"\n", 1))
	return err
}

// plugged plugs the stick in, and waits until the job runs.
func (d *demo) plugged(ctx context.Context) error {
	stage.Say("The stick is plugged in%s", d.stick.remark())
	at, err := d.stick.plug(ctx, d.agent, true)
	if err != nil {
		return err
	}
	stage.Note("(An agent tells its servers of a change to its node after 5 to 10 s. This delay is Nomad's.)")
	if err := d.nodeHas(ctx, at, ""); err != nil {
		return err
	}
	if err := d.job.Wait(ctx, api.AllocClientStatusRunning); err != nil {
		return err
	}
	stage.Note("The job was placed, and runs after %s. Its output:", since(at))
	return d.hears(ctx, "hello 2")
}

func (d *demo) unplugged(ctx context.Context) error {
	stage.Say("The stick is pulled out while the task uses it")
	at, err := d.stick.plug(ctx, d.agent, false)
	if err != nil {
		return err
	}
	if err := d.hears(ctx, "no stick"); err != nil {
		return err
	}
	return d.nodeHas(ctx, at, "unplugged")
}

func (d *demo) pluggedAgain(ctx context.Context) error {
	stage.Say("And plugged in again")
	if _, err := d.stick.plug(ctx, d.agent, true); err != nil {
		return err
	}
	if err := d.skip(ctx); err != nil {
		return err
	}
	if err := d.hears(ctx, "hello"); err != nil {
		return err
	}
	stage.Note("The same task goes on, with the same path, though the kernel's device is another.")
	return nil
}

func (d *demo) restarted(ctx context.Context) error {
	stage.Say("nomad alloc restart: Nomad does not ask the plugin again")
	if err := d.skip(ctx); err != nil {
		return err
	}
	if err := d.agent.Client().Allocations().Restart(d.job.Alloc, "", nil); err != nil {
		return fmt.Errorf("failed to restart the allocation: %w", err)
	}
	return d.hears(ctx, "hello 1 ")
}

func (d *demo) killed(ctx context.Context) error {
	stage.Say("kill -9 of the plugin")
	pids, err := d.agent.PluginPIDs(ctx)
	if err != nil {
		return err
	}
	before := pids["nomad-device-usb"]
	if err := d.skip(ctx); err != nil {
		return err
	}
	at := time.Now()
	if _, err := d.agent.Exec(ctx, "sh", "-c", fmt.Sprint("kill -9 ", before)); err != nil {
		return err
	}
	err = stage.Until(ctx, "a new plugin", func() (bool, error) {
		pids, err := d.agent.PluginPIDs(ctx)
		now := pids["nomad-device-usb"]
		return now != 0 && now != before, err
	})
	if err != nil {
		return err
	}
	stage.Note("Nomad has started another after %s. The task continued:", since(at))
	return d.hears(ctx, "hello")
}

func since(t time.Time) string { return fmt.Sprintf("%.1f s", time.Since(t).Seconds()) }
