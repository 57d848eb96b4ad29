// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/outrider-dev/outrider/lab/agent"
	labterm "github.com/outrider-dev/outrider/lab/internal/term"
	"github.com/outrider-dev/outrider/lab/vm"
)

const (
	vmDir    = "/lab" // of the agent, in the VM
	vmBin    = "/usr/local/bin"
	vmMemory = 3072 // MiB, for the agent, its plugins and some tasks
)

// vmUSB is the usb plugin's configuration in the VM: it publishes any device that is plugged, and that of `usb plug`
// by the name that the example jobs use.
const vmUSB = `
match_all = true

device "zigbee" {
  id   = "1d6b:0104"
  mode = "0666" # whatever user the task has
}`

// VM boots a virtual machine, starts the agent in it with every plugin, and opens a shell there. The machine ends with
// the shell or, if stdin is no terminal, with the context. Nothing is left, and a running lab is not touched.
func (l *Lab) VM(ctx context.Context) (err error) {
	start := time.Now()
	o, err := l.prepareVM(ctx)
	if err != nil {
		return err
	}
	end := l.step(ctx, "Booting")
	v, err := vm.Start(ctx, vm.Options{Memory: vmMemory, Progress: l.steps.Progress})
	if err != nil {
		end(err, "")
		return err
	}
	end(nil, "Linux %s, %s", v.Kernel(), processor(v))
	defer func() {
		err = errors.Join(err, v.Close())
		l.say("The VM is gone, with all that was in it.")
	}()
	end = l.step(ctx, "Starting the agent")
	address, err := l.startInVM(ctx, v, o)
	end(err, "%s", address)
	if err != nil {
		return err
	}
	l.say("\nWeb UI   %s/ui\nNomad    NOMAD_ADDR=%[1]s %s status   # from here", address, o.Binary)
	l.say("Ready in %s. In the VM you can now:\n", labterm.Short(time.Since(start)))
	l.say("  usb plug       # a serial stick, as device \"zigbee\"; -h lists the options of another")
	l.say("  nomad job run plugins/usb/example/serial.nomad.hcl")
	l.say("  usb unplug\n")
	if !term.IsTerminal(int(os.Stdin.Fd())) || !term.IsTerminal(int(os.Stdout.Fd())) {
		l.say("This is no terminal, so there is no shell. ^C ends the VM.")
		<-ctx.Done()
		return nil
	}
	l.say("This is a shell in it, as root, over a copy of this machine's files. Its end (^D) ends the VM.")
	inside := fmt.Sprintf("http://127.0.0.1:%d", o.HTTPPort)
	env := append(os.Environ(), "NOMAD_ADDR="+inside, "PATH="+vmBin+":"+os.Getenv("PATH"))
	return v.Shell(ctx, vm.Cmd{Args: []string{"bash"}, Dir: l.root, Env: env})
}

func processor(v *vm.VM) string {
	if v.Accelerator() == "kvm" {
		return "with KVM"
	}
	return "processor emulated"
}

// prepareVM builds on this machine, which is faster than in a VM.
func (l *Lab) prepareVM(ctx context.Context) (agent.Options, error) {
	l.runtime, l.usb, l.dataset = agent.Host, usbNone, datasetNone
	o, err := l.prepare(ctx)
	o.Name, o.HTTPPort = "outrider-vm", defaultPort
	for i, p := range o.Plugins {
		if p.Name() == usbPlugin {
			o.Plugins[i].Config = vmUSB
		}
	}
	return o, err
}

// startInVM starts the agent and returns its address here.
func (l *Lab) startInVM(ctx context.Context, v *vm.VM, o agent.Options) (string, error) {
	ctl, err := vm.Build(ctx, "vmctl", l.steps.Progress)
	if err != nil {
		return "", err
	}
	// what a shell there finds on its PATH
	script := `ln -sf "$1" "$3/nomad"; printf '#!/bin/sh\nexec "%s" usb "$@"\n' "$2" >"$3/usb"; chmod 755 "$3/usb"`
	if out, err := v.Output(ctx, "sh", "-ec", script, "sh", o.Binary, ctl, vmBin); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	options, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	var errOut bytes.Buffer
	err = v.Run(ctx, vm.Cmd{Args: []string{ctl, "agent", "run", vmDir}, Stdin: bytes.NewReader(options), Stderr: &errOut})
	if err != nil {
		return "", fmt.Errorf("failed to start the agent in the VM: %w: %s", err, errOut.String())
	}
	address, err := v.Forward(o.HTTPPort)
	return "http://" + address, err
}
