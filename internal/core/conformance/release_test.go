// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package conformance_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/conformance"
	"github.com/outrider-dev/outrider/internal/core/device"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// hoard reserves directories for tasks. The file "running" lists the directories whose task is running, and the file
// "ended" those whose task has ended.
type hoard struct {
	Root    string `codec:"root" doc:"Where the directories are."`
	Absence bool   `codec:"absence" doc:"Take a directory that is not named as running for one whose task has ended."`
}

var hoardPlugin = device.Plugin[hoard]{
	Name: "hoard", New: func(h hoard, _ hclog.Logger) (device.Instance, error) { return h, nil },
}

func (hoard) Options() device.Options {
	return device.Options{Period: 300 * time.Millisecond, Grace: 2 * time.Second}
}

func (hoard) List(context.Context) ([]device.Group, error) {
	two := []device.Device{{ID: "dir-a"}, {ID: "dir-b"}}
	return []device.Group{{Vendor: "host", Type: "scratch", Name: "directory", Devices: two}}, nil
}

func (h hoard) Reserve(_ context.Context, ids []string) (*nomad.ContainerReservation, error) {
	dir, err := os.MkdirTemp(h.Root, ids[0]+".")
	return &nomad.ContainerReservation{Mounts: []*nomad.Mount{{HostPath: dir, TaskPath: "/scratch"}}}, err
}

func (h hoard) named(file, dir string) bool {
	names, _ := os.ReadFile(filepath.Join(h.Root, file))
	return slices.Contains(strings.Fields(string(names)), dir)
}

func (h hoard) Leases(context.Context, ...string) (all []device.Lease, err error) {
	dirs, err := filepath.Glob(filepath.Join(h.Root, "dir-*"))
	for _, dir := range dirs {
		ended := h.named("ended", dir)
		if h.Absence {
			ended = !h.named("running", dir)
		}
		id, _, _ := strings.Cut(filepath.Base(dir), ".")
		all = append(all, device.Lease{ID: id, Holder: dir, Ended: ended})
	}
	return all, err
}

func (hoard) Release(_ context.Context, l device.Lease) error {
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	for _, table := range tables {
		if mounts, _ := os.ReadFile(table); strings.Contains(string(mounts), "/"+filepath.Base(l.Holder)+" ") {
			return device.ErrInUse
		}
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(l.Holder)
}

// hoardVar makes the test binary act as the plugin, and tableVar makes it run the cases with this plugin.
const (
	hoardVar = "OUTRIDER_CONFORMANCE_HOARD"
	tableVar = "OUTRIDER_CONFORMANCE_TABLE" // the option absence: "true" or "false"
)

func TestRelease_RejectsAPluginThatTakesAbsenceAsEvidence(t *testing.T) {
	testsupport.NeedRoot(t) // to mount directories as tasks do
	const cases = "^(a_device_that_is_not_in_use_yet|missing_information|the_lease_of_an_ended_holder)"
	table := func(absence string) (failed []string) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRelease_AcceptsAPluginWithEvidence$/"+cases)
		cmd.Env = append(os.Environ(), tableVar+"="+absence)
		out, _ := cmd.CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if name, is := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: TestRelease_AcceptsAPluginWithEvidence/"); is {
				name, _, _ = strings.Cut(name, " ")
				failed = append(failed, strings.ReplaceAll(name, "_", " "))
			}
		}
		if !cmd.ProcessState.Exited() || cmd.ProcessState.Success() != (len(failed) == 0) {
			t.Errorf("the process of the cases: %s\n%s", cmd.ProcessState, out)
		}
		return failed
	}
	evidence := make(chan []string)
	go func() { evidence <- table("false") }()
	failed := table("true")
	slices.Sort(failed)
	must.Eq(t, []string{"a device that is not in use yet stays reserved", "missing information is not evidence"}, failed)
	must.SliceEmpty(t, <-evidence)
}

// TestRelease_AcceptsAPluginWithEvidence runs only in the processes that the test above starts.
func TestRelease_AcceptsAPluginWithEvidence(t *testing.T) {
	absence := os.Getenv(tableVar)
	if absence == "" {
		return
	}
	config := func(root string) string { return fmt.Sprintf("root = %q\nabsence = %s", root, absence) }
	conformance.Device{
		Plugin: func(ctx context.Context, log hclog.Logger) nomad.DevicePlugin {
			return device.New(ctx, log, hoardPlugin)
		},
		Config:  config(t.TempDir()),
		Release: func(t *testing.T) *conformance.Release { return hoardRelease(t, config) },
	}.Test(t)
}

// hoardRelease returns the input of one case, which has its own directory.
func hoardRelease(t *testing.T, config func(root string) string) *conformance.Release {
	root, err := filepath.EvalSymlinks(t.TempDir())
	must.NoError(t, err)
	exe, err := os.Executable()
	must.NoError(t, err)
	add := func(t *testing.T, file string, dirs ...string) {
		f, err := os.OpenFile(filepath.Join(root, file), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		must.NoError(t, err)
		for _, dir := range dirs {
			fmt.Fprintln(f, dir)
		}
		must.NoError(t, f.Close())
	}
	held := func(t *testing.T, pattern string) []string {
		dirs, err := filepath.Glob(filepath.Join(root, pattern))
		must.NoError(t, err)
		return dirs
	}
	return &conformance.Release{
		Binary: conformance.Binary{Name: "nomad-device-hoard", Exe: exe, Env: map[string]string{hoardVar: "plugin"},
			Config: config(root)},
		Use: func(t *testing.T, r *nomad.ContainerReservation) func() {
			add(t, "running", r.Mounts[0].HostPath)
			cmd := exec.Command("sh", "-c", `mount --bind "$0" /mnt && echo mounted && exec sleep 1000`, r.Mounts[0].HostPath)
			cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
			out, err := cmd.StdoutPipe()
			must.NoError(t, err)
			must.NoError(t, cmd.Start())
			_, err = out.Read(make([]byte, 100))
			must.NoError(t, err)
			return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
		},
		Traces: func(*testing.T, *nomad.ContainerReservation) []string { return nil },
		End: func(t *testing.T, id string) {
			add(t, "ended", held(t, id+".*")...)
			must.NoError(t, os.WriteFile(filepath.Join(root, "running"), nil, 0o600))
		},
		Blind: func(t *testing.T) func() {
			known := filepath.Join(root, "running")
			must.NoError(t, os.Rename(known, known+".hidden"))
			return func() { must.NoError(t, os.Rename(known+".hidden", known)) }
		},
		Held: func(t *testing.T) (ids []string) {
			for _, dir := range held(t, "dir-*") {
				id, _, _ := strings.Cut(filepath.Base(dir), ".")
				ids = append(ids, id)
			}
			return ids
		},
	}
}
