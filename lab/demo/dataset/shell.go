// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/demo/stage"
)

//go:embed data.volume.hcl
var volume string

var byHand = regexp.MustCompile(`nomad-device-dataset (\w+)`)

// shell shows a command, and returns what runs it in a directory with data.volume.hcl.
func (d *demo) shell(command string) (run func(context.Context) (string, error), err error) {
	dir := filepath.Join(d.agent.Info().Dir, "demo")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "data.volume.hcl"), []byte(volume), 0o600); err != nil {
		return nil, err
	}
	list, _, err := d.agent.Client().HostVolumes().List(&api.HostVolumeListRequest{}, nil)
	if err != nil {
		return nil, fmt.Errorf("failed to list the volumes: %w", err)
	}
	for _, v := range list {
		command = strings.ReplaceAll(command, "data-id", v.ID)
	}
	stage.Note("$ %s", command)
	script := byHand.ReplaceAllString(command, strconv.Quote(filepath.Join(d.agent.PluginDir(), "nomad-device-dataset"))+
		" $1 -file "+strconv.Quote(filepath.Join(d.agent.HostVolumePluginDir(), "dataset.hcl")))
	script = strings.ReplaceAll(script, "nomad volume", strconv.Quote(d.agent.Info().Binary)+" volume")
	return func(ctx context.Context) (string, error) {
		cmd := exec.CommandContext(ctx, "sh", "-c", script)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "NOMAD_ADDR="+d.agent.Address())
		out, err := cmd.CombinedOutput()
		if err != nil {
			return string(out), fmt.Errorf("failed to run %s: %w: %s", command, err, out)
		}
		return string(out), nil
	}, nil
}

// run runs a command and shows its output.
func (d *demo) run(ctx context.Context, command string) (string, error) {
	run, err := d.shell(command)
	if err != nil {
		return "", err
	}
	out, err := run(ctx)
	for line := range strings.Lines(out) {
		if line = strings.TrimRight(line, "\n"); strings.Contains(line, "  ") {
			fmt.Println("   " + line) // of a table
			continue
		}
		stage.Note("%s", line)
	}
	return out, err
}

// job is a job that has the volume.
func (d *demo) job(name, kind, script string) string {
	return strings.NewReplacer("JOB", name, "TYPE", kind, "SCRIPT", strconv.Quote(script)).Replace(withVolume)
}

// batch runs a job to its end, and shows what it prints.
func (d *demo) batch(ctx context.Context, name, script string) error {
	job, err := stage.Submit(d.agent, d.job(name, "batch", script))
	if err != nil {
		return err
	}
	return d.ends(ctx, job)
}

// ends waits for a job's end, shows what it has printed, and purges it.
func (d *demo) ends(ctx context.Context, job *stage.Job) error {
	if err := job.Wait(ctx, api.AllocClientStatusComplete); err != nil {
		return err
	}
	if err := d.said(ctx, job, ""); err != nil {
		return err
	}
	return job.Stop(true)
}

// said shows the output of a job, once it has this text.
func (d *demo) said(ctx context.Context, job *stage.Job, text string) error {
	return stage.Until(ctx, "the output of "+job.ID, func() (bool, error) {
		out, err := job.Output(ctx)
		if err != nil || !strings.Contains(out, text) {
			return false, err
		}
		for line := range strings.Lines(out) {
			stage.Note("  | %s", strings.TrimRight(line, "\n"))
		}
		return true, nil
	})
}

// stop stops a job and waits until its task has ended.
func (d *demo) stop(ctx context.Context, job *stage.Job) error {
	if err := job.Stop(false); err != nil {
		return err
	}
	return job.Wait(ctx, api.AllocClientStatusComplete)
}
