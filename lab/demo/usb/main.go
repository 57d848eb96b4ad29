// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command usb shows a USB stick that a task reserves by name, and that is plugged in,
// pulled out and plugged in again. The stick is simulated unless -id names one for the
// user to plug. It runs a Nomad agent of its own and removes everything at the end:
// go tool mage demo:usb.
package main

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/demo/stage"
)

//go:embed *.hcl
var files embed.FS

// realNodes is not below /tmp, which may be mounted with nodev.
const realNodes = "/dev/nomad-usb-demo"

func main() {
	id := flag.String("id", "", "a real stick, as lsusb writes it (10c4:ea60)")
	flag.Parse()
	d := &demo{id: *id, root: "/", nodes: realNodes}
	if *id != "" && os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "demo: a real stick needs root, which makes its device nodes for the task")
		os.Exit(1)
	}
	if *id == "" {
		d.id, d.root, d.nodes, d.simulated = "10c4:ea60", "${state_dir}/usb", "${state_dir}/usb-nodes", true
	} else {
		defer os.RemoveAll(realNodes)
	}
	stage.Demo{
		Plugins: map[string]string{"exec-lite": `state_dir = "${state_dir}"`, "usb": d.config()},
		OnHost:  !d.simulated,
		Play: func(ctx context.Context, a agent.Agent) error {
			d.Script = &stage.Script{Agent: a, Files: files, Vars: map[string]string{"id": d.id, "user": ""}}
			if a.Info().Runtime == agent.Container || agent.Privileged() {
				d.Vars["user"] = "nobody"
			}
			return d.Play(ctx, d.acts()...)
		},
	}.Main()
}

type demo struct {
	*stage.Script
	id, root, nodes string // of the stick, the simulation, and the device nodes for tasks
	simulated       bool
}

// config is the plugin's. The kernel reports no simulated stick.
func (d *demo) config() string {
	return fmt.Sprintf(`root       = %q
rescan     = "200ms"
shadow_dir = %q
grace      = "1m"
device "zigbee" {
  id   = %q
  mode = "0666"
}`, d.root, d.nodes, d.id)
}

// output is the command that shows what the job has printed.
const output = "nomad logs -job talker"

func (d *demo) acts() []stage.Act {
	remark := ""
	if d.simulated {
		remark = ` (a simulated one: job "stick" runs nomad-device-usb simulate, and is unplugged by stopping it)`
	}
	more := d.Skip(output)
	return []stage.Act{
		{Say: `A job that asks for its stick by name: device "zigbee" {}`, Steps: slices.Concat(d.without(), []stage.Step{
			{Run: "nomad job run -detach talker.nomad.hcl"},
			{Run: "nomad job status talker | grep Constraint", Expect: "missing devices"},
			{Note: "No stick is plugged in: the job waits."},
		})},
		{Say: "The stick is plugged in" + remark, Steps: append(d.plug(true), []stage.Step{
			{Note: "(An agent tells its servers of a change to its node after 5 to 10 s. This delay is Nomad's.)"},
			d.node(" true "),
			{Note: "{took} after it, the node has the stick."},
			{Run: output, Quiet: true, Expect: "I am"},
			{Note: "The job was placed, and runs after {took}. Its output:"},
			{Run: output, Expect: "hello 2"},
		}...)},
		{Say: "The stick is pulled out while the task uses it", Steps: append(d.plug(false), []stage.Step{
			{Run: output, Expect: "no stick"},
			d.node("unplugged"),
			{Note: "{took} after it, the node has the stick as unhealthy: unplugged."},
		}...)},
		{Say: "And plugged in again", Steps: append(d.plug(true), []stage.Step{
			more,
			{Run: output, Expect: "hello"},
			{Note: "The same task goes on, with the same path, though the kernel's device is another."},
		}...)},
		{Say: "nomad alloc restart: Nomad does not ask the plugin again", Steps: []stage.Step{
			more,
			{Run: "nomad alloc restart $(nomad job allocs -t '{{range .}}{{.ID}}{{end}}' talker)"},
			{Run: output, Expect: "hello 1 "},
		}},
		{Say: "kill -9 of the plugin", Steps: []stage.Step{
			more,
			{Do: d.kill},
			{Run: output, Expect: "hello"},
		}},
	}
}

// plug plugs the stick in or pulls it out, and waits until the kernel, or its simulation, has reported that.
func (d *demo) plug(in bool) []stage.Step {
	change := stage.Step{Note: ">>> Please pull out " + d.id + " now."}
	state := "out"
	switch {
	case !d.simulated && in:
		change.Note = ">>> Please plug in " + d.id + " now."
	case in:
		change = stage.Step{Run: "nomad job run -detach stick.nomad.hcl"}
	case d.simulated:
		change = stage.Step{Run: "nomad job stop -detach stick"}
	}
	if in {
		state = "in"
	}
	root := `"$NOMAD_VAR_state/usb"`
	if !d.simulated {
		root = ""
	}
	look := fmt.Sprintf(`cd %s/sys/bus/usb/devices
case $(for d in *; do cat $d/idVendor $d/idProduct 2>/dev/null | tr '\n' :; done) in
*%s:*) echo in ;;
*) echo out ;;
esac`, root, d.id)
	return []stage.Step{change, {Run: look, Quiet: true, Expect: state}, d.Now()}
}

const devices = `nomad node status -self -t '{{range .NodeResources.Devices}}{{range .Instances}}` +
	`{{println .ID .Healthy .HealthDescription "end"}}{{end}}{{end}}'`

// node waits until the node has the device in a state.
func (d *demo) node(state string) stage.Step {
	return stage.Step{Run: devices, Quiet: true, Expect: state}
}

// without waits until the node is without the device, also when the first act is played again.
func (d *demo) without() []stage.Step {
	steps := []stage.Step{{Run: "nomad job stop -purge stick || true", Quiet: true}}
	if !d.simulated {
		steps = d.plug(false)
	}
	return append(steps, stage.Step{Run: devices + " | grep -c ' true ' || true", Quiet: true, Expect: "0"})
}

// kill kills the plugin, and waits for the next one.
func (d *demo) kill(ctx context.Context) error {
	const name = agent.DevicePrefix + "usb"
	pids, err := d.Agent.PluginPIDs(ctx)
	before := pids[name]
	if err != nil || before == 0 {
		return errors.Join(err, errors.New("the plugin does not run"))
	}
	start := time.Now()
	stage.Note("$ kill -9 %d", before)
	if _, err := d.Shell(ctx, fmt.Sprint("kill -9 ", before)); err != nil {
		return err
	}
	err = stage.Until(ctx, "a new plugin", func() (bool, error) {
		pids, err := d.Agent.PluginPIDs(ctx)
		return pids[name] != 0 && pids[name] != before, err
	})
	if err == nil {
		stage.Note("Nomad has started another after %.1f s. The task continued:", time.Since(start).Seconds())
	}
	return err
}
