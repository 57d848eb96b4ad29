// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/zfsfuse"
	"github.com/outrider-dev/outrider/lab/agent"
)

func TestClasses_UseDatasetsOfThePool(t *testing.T) {
	l, _ := quiet(t)
	l.dataset = true
	must.NoError(t, os.MkdirAll(l.poolDir(), 0o755))
	pool, _ := zfsfuse.Open(l.poolDir())
	must.NoError(t, os.WriteFile(pool.Program, nil, 0o600)) // Open takes a pool with this file for complete
	text, err := l.classes(t.Context())
	must.NoError(t, err)
	test.StrContains(t, text, fmt.Sprintf("\nzfs = %q\n", pool.Program))
	for _, class := range []string{"fast", "strict"} {
		test.StrContains(t, text, fmt.Sprintf("class %q {\n  root             = %q\n", class, pool.Root+"/"+class))
	}
}

// datasetLab is a lab whose methods fail the test if a command fails.
type datasetLab struct {
	*Lab
	t     *testing.T
	out   *bytes.Buffer
	agent agent.Agent
}

func newDatasetLab(t *testing.T) *datasetLab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root makes and mounts file systems")
	}
	if _, err := exec.LookPath("zfs-fuse"); err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip(err)
	}
	l, out := live(t)
	d := &datasetLab{Lab: l, t: t, out: out}
	d.does("Ready in", func() error { return l.Up(t.Context(), With{}) })
	var err error
	d.agent, err = l.open(t.Context())
	must.NoError(t, err)
	return d
}

// does calls f, a command of the lab, which must succeed and print want.
func (d *datasetLab) does(want string, f func() error) {
	d.t.Helper()
	d.out.Reset()
	start := time.Now()
	must.NoError(d.t, f(), must.Sprint(d.out))
	must.StrContains(d.t, d.out.String(), want, must.Sprintf("no %q in\n%s", want, d.out))
	d.t.Logf("%.1f s: %s", time.Since(start).Seconds(), want)
}

func (d *datasetLab) example(name string) string {
	return filepath.Join(d.root, "plugins/dataset/example", name)
}

// runs runs the job of an example, which must print want.
func (d *datasetLab) runs(want, name string) {
	d.t.Helper()
	d.does(want, func() error { return d.Run(d.t.Context(), d.example(name)) })
}

// command runs a program with NOMAD_ADDR set to the agent's address. The program must succeed.
func (d *datasetLab) command(argv ...string) {
	d.t.Helper()
	cmd := exec.CommandContext(d.t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+d.agent.Address())
	start := time.Now()
	text, err := cmd.CombinedOutput()
	must.NoError(d.t, err, must.Sprintf("%s", text))
	d.t.Logf("%.1f s: %q", time.Since(start).Seconds(), argv[1:])
}

func (d *datasetLab) nomad(args ...string) {
	d.t.Helper()
	d.command(append([]string{d.agent.Info().Binary}, args...)...)
}

// byHand runs a command of the plugin's binary with the lab's file of classes.
func (d *datasetLab) byHand(args ...string) {
	d.t.Helper()
	program := filepath.Join(d.agent.PluginDir(), datasetPlugin)
	file := filepath.Join(d.agent.HostVolumePluginDir(), datasetVolumes+".hcl")
	d.command(append(append([]string{program}, args...), "-file", file)...)
}

// kill kills the agent that runs now. It may be another one than newDatasetLab started, because commands restart
// agents.
func (d *datasetLab) kill() {
	d.t.Helper()
	a, err := d.open(d.t.Context())
	must.NoError(d.t, err)
	must.NoError(d.t, a.Kill(d.t.Context()))
	d.agent = a
}

// leavesNothing kills the agent, and checks that lab:down then still removes everything.
func (d *datasetLab) leavesNothing() {
	d.t.Helper()
	pool, made := zfsfuse.Open(d.poolDir())
	must.True(d.t, made)
	points, err := filepath.Glob("/run/outrider/dataset/slots/*") // includes the mount points of other labs
	must.NoError(d.t, err)
	points = slices.DeleteFunc(points, func(dir string) bool {
		source, _ := exec.CommandContext(d.t.Context(), "findmnt", "-no", "SOURCE", dir).Output()
		return !strings.HasPrefix(string(source), pool.Root)
	})
	d.kill()
	d.does("stopped, files removed", func() error { return d.Down(d.t.Context()) })
	for _, dir := range points {
		test.False(d.t, testsupport.Exists(dir), test.Sprintf("%s still exists", dir))
	}
	left, err := agent.Processes(d.dir)
	must.NoError(d.t, err)
	test.SliceEmpty(d.t, left, test.Sprint("processes of the agent"))
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must.NoError(d.t, err)
	for _, name := range []string{d.dir, pool.Root} {
		test.StrNotContains(d.t, string(mounts), name, test.Sprint("a mount still exists"))
	}
}

// TestLab_RunsWithDatasets follows the README and docs/plugins/dataset.md, and runs the examples.
func TestLab_RunsWithDatasets(t *testing.T) {
	testsupport.Long(t, "starts its own lab")
	d := newDatasetLab(t)
	test.StrContains(t, d.out.String(), "No devices.", test.Sprint("devices without -dataset"))
	d.out.Reset()
	test.ErrorContains(t, d.Run(t.Context(), d.example("scratch.nomad.hcl")), "missing devices")
	d.does("svc runs", func() error {
		return d.Run(t.Context(), jobFile(t, "service", "svc", "exec-lite", "echo up; exec sleep 1000"))
	})
	before := running(t, d.agent)
	must.MapLen(t, 1, before)
	d.does("Restarting the agent with", func() error { return d.Up(t.Context(), With{Dataset: "zfs-fuse"}) })
	test.Eq(t, before, running(t, d.agent), test.Sprint("the task has ended, or was started again"))
	d.runs("files: 0\n100000\n", "scratch.nomad.hcl")
	d.runs("files: 0\n100000\n", "scratch.nomad.hcl") // the dataset is empty again
	d.out.Reset()
	test.ErrorContains(t, d.Run(t.Context(), d.example("volume.nomad.hcl")), "missing compatible host volumes")

	d.nomad("volume", "create", d.example("notes.volume.hcl"))
	d.runs("     1\t", "volume.nomad.hcl")
	d.runs("     2\t", "volume.nomad.hcl")
	d.byHand("snapshot", "notes", "before")
	d.runs("     3\t", "volume.nomad.hcl")
	d.nomad("volume", "create", d.example("notes-before.volume.hcl"))
	d.runs("     2\t", "clone.nomad.hcl")
	test.StrNotContains(t, d.out.String(), "     3\t", test.Sprint("the clone has more than the snapshot"))
	d.byHand("rollback", "notes", "before")
	d.runs("     3\t", "volume.nomad.hcl")
	test.StrNotContains(t, d.out.String(), "     4\t", test.Sprint("the volume was not rolled back"))

	d.kill()
	d.does("Restarting the agent with the new build", func() error { return d.Up(t.Context(), With{}) })
	d.runs("     4\t", "volume.nomad.hcl")
	spoil := jobFile(t, "service", "svc", "exec-lite", "echo up; exec sleep 1000")
	text, err := os.ReadFile(spoil)
	must.NoError(t, err)
	with := strings.Replace(string(text), "resources {", "resources {\n device \"dataset\" {}", 1)
	must.NoError(t, os.WriteFile(spoil, []byte(with), 0o600))
	d.does("svc runs", func() error { return d.Run(t.Context(), spoil) })
	d.leavesNothing()
}
