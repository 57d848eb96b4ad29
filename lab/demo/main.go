// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command demo (go tool mage demo:exec-lite) shows a plugin in its own Nomad agent, which it removes at the end. A demo
// is a shell script, in which each act begins with a call of the function say; see lib.sh.
package main

import (
	"cmp"
	"context"
	"embed"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/lab"
	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/demo/stage"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

//go:embed */*.sh */*.hcl
var files embed.FS

//go:embed lib.sh
var lib string

var (
	both = flag.Bool("both", false, "exec-lite: also kill plugin and supervisor at the same time")
	id   = flag.String("id", "", "usb: the ID of a real stick, as lsusb prints it (10c4:ea60)")
)

const (
	stateDir  = `state_dir = "${state_dir}"`
	simulated = "10c4:ea60"
	realNodes = "/dev/nomad-usb-demo" // not below /tmp, which may be mounted with nodev
)

func main() {
	flag.Parse()
	name := flag.Arg(0)
	demos := map[string]stage.Demo{
		"exec-lite": {Plugins: map[string]string{"exec-lite": stateDir}},
		"python":    {Plugins: map[string]string{"python": ""}},
		"usb":       {Plugins: map[string]string{"exec-lite": stateDir, "usb": usbConfig()}, OnHost: *id != ""},
		"dataset": {Plugins: map[string]string{"exec-lite": stateDir, "dataset": ""}, OnHost: true,
			With: lab.With{Dataset: "zfs-fuse"}},
		"remote": {Plugins: map[string]string{"exec-lite": stateDir, "remote": ""}, OnHost: true,
			With: lab.With{Remote: "sim"}},
	}
	d, ok := demos[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "demo: unknown demo %q: want dataset, exec-lite, python, remote or usb\n", name)
		os.Exit(1)
	}
	if *id != "" && os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "demo: only root can create the device nodes of a real stick: run the demo as root")
		os.Exit(1)
	}
	if *id != "" {
		defer os.RemoveAll(realNodes)
	}
	d.Play = func(ctx context.Context, a agent.Agent) error { return play(ctx, a, name) }
	d.Main()
}

//go:embed usb/config.hcl
var usbPlugin string

// usbConfig returns the usb plugin's configuration for a real stick, if -id is set, or for the simulated one.
func usbConfig() string {
	if *id == "" {
		return usbPlugin
	}
	real := strings.NewReplacer("${state_dir}/usb-nodes", realNodes, "${state_dir}/usb", "/", simulated, *id)
	return real.Replace(usbPlugin)
}

// play plays a script where the agent's tasks run. Each act is a new shell. The lines before the first act run in each.
func play(ctx context.Context, a agent.Agent, name string) error {
	dir := filepath.Join(a.Info().Dir, "demo")
	root, err := build.Root(".")
	if err == nil {
		err = copyFiles(root, name, dir)
	}
	if err == nil && name == "usb" && *id == "" {
		err = build.Builder{Root: root}.Stick(ctx, filepath.Join(dir, "usb-stick"))
	}
	if err != nil {
		return fmt.Errorf("failed to write the demo's files: %w", err)
	}
	script, err := files.ReadFile(name + "/demo.sh")
	if err != nil {
		return err
	}
	acts := strings.Split(string(script), "\nsay ")
	if !*both {
		acts = slices.DeleteFunc(acts, func(act string) bool { return strings.Contains(act, "\n# (with -both)\n") })
	}
	begin := "set -eu\nPATH=$NOMAD_VAR_plugins:$PATH\n" + lib + acts[0] + "\nsay "
	return stage.InOrder(ctx, acts[1:], func(ctx context.Context, act string) error {
		if err := os.WriteFile(filepath.Join(dir, "act"), []byte(begin+act), 0o644); err != nil {
			return err
		}
		cmd, err := lab.In(a, false, environment(a), "sh", "-c", `cd "$0" && exec sh act`, dir)
		if err != nil {
			return err
		}
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })() // when ctx ends, end the shell (or docker exec)
		return cmd.Wait()
	})
}

// copyFiles copies a demo's files to dir, where the agent's tasks can also read them.
func copyFiles(root, name, dir string) error {
	own, err := fs.Sub(files, name)
	if err == nil {
		err = os.CopyFS(dir, own)
	}
	if err != nil || name != "python" {
		return err
	}
	return os.CopyFS(dir, os.DirFS(filepath.Join(root, "plugins/python/example")))
}

// environment returns the variables of the scripts. Job files use a variable named NOMAD_VAR_x as x.
func environment(a agent.Agent) []string {
	env := []string{
		"NOMAD_CLI_SHOW_HINTS=false", "NOMAD_VAR_plugins=" + a.PluginDir(), "NOMAD_VAR_state=" + a.StateDir(),
		fmt.Sprintf("NOMAD_VAR_mark=# demo %d", os.Getpid()), "NOMAD_VAR_user=", "NOMAD_VAR_id=" + cmp.Or(*id, simulated),
		"NOMAD_VAR_stick=" + filepath.Join(a.Info().Dir, "demo", "usb-stick"),
		"DEMO_AGENT=" + a.Info().Dir, "DEMO_VOLUME_PLUGINS=" + a.HostVolumePluginDir(), "DEMO_REAL=" + *id,
		"COLUMNS=" + fmt.Sprint(term.Terminal(os.Stdout)), "COLOR=" + term.Paint(os.Stdout, "1", ""),
	}
	if a.Info().Runtime == agent.Container || os.Geteuid() == 0 {
		env = append(env, "NOMAD_VAR_user=nobody")
	}
	return env
}
