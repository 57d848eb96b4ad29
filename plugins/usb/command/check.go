// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/agentconfig"
	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/schema"

	"github.com/outrider-dev/outrider/plugins/usb/config"
	"github.com/outrider-dev/outrider/plugins/usb/match"
	"github.com/outrider-dev/outrider/plugins/usb/shadow"
	"github.com/outrider-dev/outrider/plugins/usb/sysfs"
)

// Check is the command check.
var Check = plugin.Command{
	Name: "check",
	Help: "check a configuration, and show which devices it selects",
	Run: func(_ context.Context, args []string) error {
		args, err := plugin.Usage{
			Binary: pluginName, Command: "check", Arguments: "CONFIG", Least: 1, Most: 1,
			About: "Checks a configuration, and shows which devices each block selects. CONFIG is a file or\n" +
				"directory of an agent's configuration, or a file with the content of config { … } alone.",
		}.Parse(flag.NewFlagSet("check", flag.ContinueOnError), args, os.Stdout)
		if err != nil {
			return err
		}
		return check(os.Stdout, args[0])
	},
}

// check prints which devices of this machine a configuration selects. It returns an error if an agent would refuse the
// configuration.
func check(w io.Writer, path string) error {
	c, err := loadConfig(path)
	if err == nil {
		return report(w, path, c)
	}
	var problems schema.Problems
	if errors.As(err, &problems) && len(problems) > 1 {
		for _, p := range problems {
			fmt.Fprintln(w, p)
		}
		return fmt.Errorf("%s: the configuration has %d mistakes", path, len(problems))
	}
	return err
}

// pluginName is the name of the plugin in an agent's configuration, and of its binary.
const pluginName = "nomad-device-usb"

// loadConfig reads and decodes the configuration that agentconfig.Block finds in path. All its errors name path. If the
// configuration has mistakes, the error wraps schema.Problems.
func loadConfig(path string) (config.Config, error) {
	body, err := agentconfig.Block(path, pluginName, os.Args[0])
	if err != nil {
		return config.Config{}, err
	}
	c, err := schema.Of[config.Config]().DecodeAgent(body)
	if err != nil {
		return config.Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

func report(w io.Writer, path string, c config.Config) error {
	p, err := config.NewPlan(c)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	fmt.Fprintf(w, "%s: the configuration is valid.\n", path)
	notes := notesOf(p)
	if c.Root == "/" {
		if err := shadow.New(c.ShadowDir).Check(); err != nil {
			notes = append(notes, "shadow_dir: no device nodes can be made for tasks: "+err.Error())
		}
	}
	assigned, err := p.Assign()
	if err != nil {
		return err
	}
	if !config.IsDir(filepath.Join(c.Root, "sys/bus/usb/devices")) {
		notes = append(notes, fmt.Sprintf("%s does not exist: this machine has no USB, or the kernel's driver is not loaded",
			filepath.Join(c.Root, "sys/bus/usb/devices")))
	}
	byType := map[string][]match.Assigned{}
	for _, a := range assigned {
		kind := a.Type
		if !a.Published() {
			kind = ""
		}
		byType[kind] = append(byType[kind], a)
		if len(a.Also) > 0 && a.Published() {
			notes = append(notes, fmt.Sprintf("%s matches several devices: it belongs to %q, the first by name, and not to "+
				"%s", a.ID, a.Type, quoted(a.Also)))
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(p.Blocks)) {
		fmt.Fprintf(w, "\ndevice %q\n", kind)
		for _, a := range byType[kind] {
			showAssigned(w, a)
			if missing := p.Blocks[kind].Missing(a.Device); missing != "" {
				fmt.Fprintf(w, "    unhealthy: %s\n", missing)
			}
		}
		switch {
		case len(byType[kind]) > 0:
		case slices.ContainsFunc(assigned, func(a match.Assigned) bool { return slices.Contains(a.Also, kind) }):
			fmt.Fprintln(w, "  no device: all that match belong to another block")
		default:
			fmt.Fprintln(w, "  no matching device is plugged in")
			if near := nearly(c.Devices[kind].Match, assigned); near != "" {
				notes = append(notes, fmt.Sprintf("device %q: %s", kind, near))
			}
		}
	}
	if rest := byType[""]; len(rest) > 0 {
		fmt.Fprintln(w, "\nnot published")
		for _, a := range rest {
			showAssigned(w, a)
			if a.Excluded != "" {
				fmt.Fprintf(w, "    by exclude %q\n", a.Excluded)
			}
		}
	}
	for i, n := range notes {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintln(w, "note:", n)
	}
	return nil
}

func showAssigned(w io.Writer, a match.Assigned) {
	fmt.Fprintf(w, "  %s\n", a.ID)
	about := strings.TrimSpace(a.Device.Manufacturer + " " + a.Device.Product)
	for _, n := range a.Device.Nodes {
		if n.Kind != sysfs.USB {
			about = strings.TrimPrefix(about+", /"+n.Path, ", ")
		}
	}
	if about == "" {
		about = a.Device.Name
	}
	fmt.Fprintln(w, cut("    "+about))
}

// notesOf returns notes about parts of a valid configuration that may be mistakes.
func notesOf(p *config.Plan) (all []string) {
	if len(p.Blocks) == 0 {
		all = append(all, "nothing is published: add device blocks (see \"nomad-device-usb list\"), or match_all = true")
	}
	if !p.Enabled {
		all = append(all, "nothing is published: enabled is false")
	}
	used := map[string]string{}
	for _, kind := range slices.Sorted(maps.Keys(p.Blocks)) {
		b := p.Blocks[kind]
		paths := append(slices.Sorted(maps.Values(b.Names)), b.Dir)
		for _, path := range paths {
			if other := used[path]; other != "" && other != kind && path != "" {
				all = append(all, fmt.Sprintf("no task can have both device %q and device %q: both use the path %s in tasks",
					other, kind, path))
			}
			used[path] = kind
		}
	}
	return all
}

// nearly returns a note about a device that fits all options of a block except one, or "" if there is none.
func nearly(m match.Match, devices []match.Assigned) string {
	for _, a := range devices {
		option, values := m.Misfit(a.Device)
		has := "is missing"
		if len(values) > 0 && values[0] != "" {
			has = "is " + quoted(values)
		}
		if option != "" {
			return fmt.Sprintf("%s would match, but its %s %s", a.ID, option, has)
		}
	}
	return ""
}

func quoted(words []string) string {
	return "\"" + strings.Join(words, "\", \"") + "\""
}
