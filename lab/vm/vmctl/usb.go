// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/outrider-dev/outrider/lab/vm/gadget"
)

// ports is how many sticks can be plugged at once.
const ports = 2

// plug plugs a serial stick without a serial number. A process in the background plays the stick and writes each line
// that it gets to the file /run/usb-NAME.
func plug(name, port, id string) (err error) {
	number, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	var vendor, product uint16
	if _, err := fmt.Sscanf(id, "%04x:%04x", &vendor, &product); err != nil {
		return fmt.Errorf("the id %q: want one like 1d6b:0104: %w", id, err)
	}
	if err := gadget.Load(ports); err != nil {
		return err
	}
	g, err := gadget.New(name, gadget.Device{
		Vendor: vendor, Product: product, Manufacturer: "Outrider", Name: "Serial stick",
		Functions: []gadget.Function{gadget.ACM()},
	})
	if err != nil {
		return err
	}
	if err := g.Plug(number); err != nil {
		return err
	}
	out, err := os.Create("/run/usb-" + name)
	if err != nil {
		return err
	}
	defer out.Close()
	cmd := exec.Command("/proc/self/exe", "listen", g.Far()[0])
	cmd.Stdout = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// listen prints the lines that come out of a stick's other end, until the stick is unplugged and the kernel hangs up.
func listen(far string) error {
	f, err := os.OpenFile(far, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := term.MakeRaw(int(f.Fd())); err != nil {
		return err
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fmt.Println(strings.TrimSpace(lines.Text()))
	}
	return nil
}
