// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// hastyScratch is the example with shorter times, for tests.
var hastyScratch = device.Plugin[scratch]{
	Name: scratchPlugin.Name,
	New:  func(s scratch, _ hclog.Logger) (device.Instance, error) { return hasty{s}, nil },
}

type hasty struct{ scratch }

func (hasty) Options() device.Options {
	return device.Options{Period: 300 * time.Millisecond, Grace: 2 * time.Second}
}

func TestReleaseExample_Conforms(t *testing.T) {
	testsupport.NeedRoot(t) // to mount directories as tasks do
	config := func(root string) string { return fmt.Sprintf("root = %q\nidle = \"1h\"", root) }
	names := func(t *testing.T, dir string) (all []string) {
		entries, err := os.ReadDir(dir)
		must.NoError(t, err)
		for _, e := range entries {
			all = append(all, e.Name())
		}
		return all
	}
	conformance.Device{
		Plugin: func(ctx context.Context, log hclog.Logger) nomad.DevicePlugin {
			return device.New(ctx, log, hastyScratch)
		},
		Config: config(t.TempDir()),
		Release: func(t *testing.T) *conformance.Release {
			root := t.TempDir()
			return &conformance.Release{
				Binary: device.PluginBinary(t, "scratch", config(root)),
				Use:    mount,
				Traces: func(t *testing.T, r *nomad.ContainerReservation) []string { return names(t, r.Mounts[0].HostPath) },
				End: func(t *testing.T, id string) {
					dirs, err := filepath.Glob(filepath.Join(root, id+".*"))
					must.NoError(t, err)
					for _, dir := range dirs {
						must.NoError(t, os.Chtimes(dir, time.Time{}, time.Now().Add(-2*time.Hour)))
					}
				},
				Held: func(t *testing.T) (ids []string) {
					for _, name := range names(t, root) {
						id, _, _ := strings.Cut(name, ".")
						ids = append(ids, id)
					}
					return ids
				},
			}
		},
	}.Test(t)
}

// mount mounts the reserved directory in a separate process, as a driver does.
func mount(t *testing.T, r *nomad.ContainerReservation) (kill func()) {
	t.Helper()
	dir := r.Mounts[0].HostPath
	cmd := exec.Command("sh", "-c", `mount --bind "$0" /mnt && echo trace > /mnt/trace && echo mounted && exec sleep 1000`,
		dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 100))
	must.NoError(t, err)
	kill = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	return kill
}
