// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Command python plays the example jobs of the python driver: a web page, an environment that is built once and then
// found in the cache, a plugin that is killed while it builds, and an exception. It runs its own Nomad agent and
// removes everything at the end: go tool mage demo:python.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/demo/stage"
	"github.com/outrider-dev/outrider/lab/nomad"
)

const (
	examples = "plugins/python/example"
	cache    = "${state_dir}/environments"
)

func main() {
	stage.Demo{
		Plugins: map[string]string{"python": "state_dir = \"${state_dir}\"\ncache_dir = \"" + cache + "\""},
		Play:    func(ctx context.Context, a agent.Agent) error { return (&demo{agent: a}).acts(ctx) },
	}.Main()
}

type demo struct {
	agent agent.Agent
}

func (d *demo) acts(ctx context.Context) error {
	return stage.InOrder(ctx, d.interpreters, d.page, d.cached, d.killed, d.crash)
}

// interpreters shows the node's Python versions and uv.
func (d *demo) interpreters(ctx context.Context) error {
	drivers, err := nomad.Health(ctx, d.agent.Client(), "python")
	if err != nil {
		return err
	}
	has := drivers[0].Attributes
	stage.Note("The node's tasks run on Python %s unless they ask for another; uv %s builds environments.",
		has["default"], has["uv.version"])
	return nil
}

func (d *demo) page(ctx context.Context) error {
	stage.Say("A web page: the whole program is in the job")
	web, err := d.submit("web")
	if err != nil {
		return err
	}
	if err := web.Wait(ctx, api.AllocClientStatusRunning); err != nil {
		return err
	}
	const get = "import sys, urllib.request as r\n" +
		"print(r.build_opener(r.ProxyHandler({})).open(sys.argv[1]).read().decode())"
	var url, page string
	err = stage.Until(ctx, "the page", func() (bool, error) { // the program may not listen yet
		services, _, err := d.agent.Client().Services().Get(web.ID, nil)
		if err != nil || len(services) == 0 {
			return false, err
		}
		url = fmt.Sprintf("http://%s:%d/", services[0].Address, services[0].Port)
		page, err = d.agent.Exec(ctx, "python3", "-c", get, url)
		return err == nil, nil
	})
	if err != nil {
		return err
	}
	stage.Note("%s, %s:", url, web.took())
	for line := range strings.Lines(page) {
		for _, wanted := range []string{"<h1>", "Interpreter", "ALLOC_ID"} {
			if strings.Contains(line, wanted) {
				stage.Note("  %s", strings.TrimSpace(line))
			}
		}
	}
	if err := web.Stop(false); err != nil {
		return err
	}
	if err := web.Wait(ctx, api.AllocClientStatusComplete); err != nil {
		return err
	}
	stage.Note("Stopped; its output was:")
	return web.output(ctx)
}

// cached builds an environment, and then finds it in the cache.
func (d *demo) cached(ctx context.Context) error {
	stage.Say("A job with a locked dependency, which it brings along: nothing is downloaded")
	if err := d.moon(ctx, "built in"); err != nil {
		return err
	}
	stage.Say("The same job again")
	return d.moon(ctx, "cache hit")
}

// moon runs the wheelhouse job to its end. One of its events must have this text.
func (d *demo) moon(ctx context.Context, event string) error {
	r, err := d.submit("wheelhouse")
	if err != nil {
		return err
	}
	if _, err := r.completes(ctx, event); err != nil {
		return err
	}
	// Nomad does not run the same batch job again unless it was purged
	return agent.Purge(ctx, d.agent.Client(), "default", r.ID)
}

// killed kills the plugin while it builds.
func (d *demo) killed(ctx context.Context) error {
	stage.Say("Another environment (for a script that lists its own needs), and kill -9 of the plugin while it builds")
	pids, err := d.agent.PluginPIDs(ctx)
	if err != nil {
		return err
	}
	plugin := pids[agent.DriverPrefix+"python"]
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	var at time.Time
	killed := make(chan error, 1)
	go func() {
		var err error
		at, err = d.killBuilder(ctx, plugin)
		killed <- err
	}()
	r, err := d.submit("inline")
	if err != nil {
		return err
	}
	if err := <-killed; err != nil {
		return err
	}
	stage.Note("Plugin %d was killed. Nomad started another, and that built the environment anew:", plugin)
	built, err := r.completes(ctx, "built in")
	if err == nil && time.Unix(0, built.Time).Before(at) {
		return errors.New("the environment was built before the plugin was killed: run the demo again")
	}
	return err
}

// killBuilder waits on the plugin's machine for the first sign of a build, kills the plugin, and returns the time.
func (d *demo) killBuilder(ctx context.Context, plugin int) (time.Time, error) {
	builds := strings.Replace(cache, "${state_dir}", d.agent.StateDir(), 1) + "/builds"
	const script = `until [ -n "$(ls "$1")" ]; do :; done; kill -9 "$2"; date +%s%N`
	out, err := d.agent.Exec(ctx, "sh", "-c", script, "sh", builds, fmt.Sprint(plugin))
	if err != nil {
		return time.Time{}, fmt.Errorf("failed to kill the plugin: %w: %s", err, out)
	}
	at, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("failed to tell when the plugin was killed: %w", err)
	}
	return time.Unix(0, at), nil
}

func (d *demo) crash(ctx context.Context) error {
	stage.Say("A program that ends with an exception")
	r, err := d.submit("crash")
	if err != nil {
		return err
	}
	if err := r.Wait(ctx, api.AllocClientStatusFailed); err != nil {
		return err
	}
	_, err = r.event(ctx, "Python: ModuleNotFoundError: No module named 'requests' (app.py:12)")
	stage.Note("The task's events, as in nomad alloc status and in the web UI:")
	r.Show()
	return err
}

// run is one run of an example.
type run struct{ *stage.Job }

// submit submits an example.
func (d *demo) submit(example string) (run, error) {
	root, err := build.Root(".")
	if err != nil {
		return run{}, err
	}
	file := filepath.Join(examples, example+".nomad.hcl")
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return run{}, fmt.Errorf("failed to read the job: %w", err)
	}
	stage.Note("The job is %s", file)
	job, err := stage.Submit(d.agent, string(text))
	return run{job}, err
}

// output shows the task's output.
func (r run) output(ctx context.Context) error {
	out, err := r.Output(ctx)
	for line := range strings.Lines(out) {
		stage.Note("  | %s", strings.TrimRight(line, "\n"))
	}
	return err
}

// completes waits until a job is complete, shows its events and output, and returns the event with a text.
func (r run) completes(ctx context.Context, text string) (*api.TaskEvent, error) {
	if err := r.Wait(ctx, api.AllocClientStatusComplete); err != nil {
		return nil, err
	}
	event, err := r.event(ctx, text)
	r.Show()
	if err != nil {
		return nil, err
	}
	stage.Note("The program started %s.", r.took())
	return event, r.output(ctx)
}

// event waits for an event of the driver. Nomad may report it after the exit.
func (r run) event(ctx context.Context, text string) (found *api.TaskEvent, err error) {
	err = r.Until(ctx, "to report: "+text, func() (bool, error) {
		for _, e := range r.Events() {
			if e.Type == api.TaskDriverMessage && strings.Contains(e.DisplayMessage, text) {
				found = e
			}
		}
		return found != nil, nil
	})
	return found, err
}

// took is the time from the creation of the task's directory until the program's process. It includes the templates.
func (r run) took() string {
	at := map[string]int64{}
	for _, e := range r.Events() {
		at[e.Type] = e.Time
	}
	took := time.Duration(at[api.TaskStarted] - at[api.TaskSetup])
	return fmt.Sprintf("%.2f s after the task's directory was made", took.Seconds())
}
