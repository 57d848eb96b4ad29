// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/helper/pointer"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/conformance"
	"github.com/outrider-dev/outrider/internal/core/schema"
)

// roleVar makes the test binary run as another program, so the tests use separate processes as in production.
const (
	roleVar  = "OUTRIDER_DEVICE_TEST_ROLE"  // plugin, agent, or the name of an example
	worldVar = "OUTRIDER_DEVICE_TEST_WORLD" // the directory of the agent's fileWorld
)

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVar); role {
	case "plugin":
		Main(filePlugin)
	case "serial", "scratch":
		ExampleMains[role]()
	default:
		os.Exit(m.Run())
	}
}

// ExampleMains are the main functions of the example plugins, by role. The examples are in package device_test.
var ExampleMains map[string]func()

// fileWorld is what the plugin finds on its simulated machine. The plugin is another process, so the method set writes
// the fileWorld to a file for it.
type fileWorld struct {
	Groups []Group
	Err    string // returned by List
	Panic  string
}

type fileConfig struct {
	Dir    string          `codec:"dir" required:"true" doc:"Where the world is."`
	Period schema.Duration `codec:"period" default:"50ms" doc:"Time between scans."`
	Grace  schema.Duration `codec:"grace" default:"5m" doc:"Grace."`
}

var filePlugin = Plugin[fileConfig]{
	Name: "files", Summary: "gives what a file says",
	New: func(c fileConfig, _ hclog.Logger) (Instance, error) {
		if strings.Contains(c.Dir, "*") {
			return nil, fmt.Errorf("dir %q has a *: name one directory", c.Dir)
		}
		// if the test has created this file, count the start in it and die
		if died, err := os.OpenFile(filepath.Join(c.Dir, "die"), os.O_APPEND|os.O_WRONLY, 0); err == nil {
			fmt.Fprint(died, ".")
			os.Exit(137)
		}
		return &fileInstance{c.Dir, Options{Period: c.Period.Duration(), Grace: c.Grace.Duration()}}, nil
	},
}

type fileInstance struct {
	dir     string
	options Options
}

func (f *fileInstance) Options() Options { return f.options }

func (f *fileInstance) List(context.Context) ([]Group, error) {
	log, err := os.OpenFile(filepath.Join(f.dir, fmt.Sprintf("scanned-by-%d", os.Getpid())),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = log.WriteString(".")
	if err := errors.Join(err, log.Close()); err != nil {
		return nil, err
	}
	var w fileWorld
	b, err := os.ReadFile(filepath.Join(f.dir, "world.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &w); err != nil {
		return nil, err
	}
	switch {
	case w.Panic != "":
		panic(w.Panic)
	case w.Err != "":
		return nil, errors.New(w.Err)
	}
	for _, g := range w.Groups {
		for i := range g.Devices {
			g.Devices[i].Problem = strings.ReplaceAll(g.Devices[i].Problem, foreign, "\xff")
		}
	}
	return w.Groups, nil
}

// foreign stands for the byte 0xff in a Problem: JSON can't represent bytes that are not valid UTF-8.
const foreign = "%ff"

func (f *fileInstance) Reserve(_ context.Context, ids []string) (*device.ContainerReservation, error) {
	return &device.ContainerReservation{
		Envs:    map[string]string{"IDS": strings.Join(ids, ",")},
		Devices: []*device.DeviceSpec{{HostPath: "/dev/null", TaskPath: "/dev/" + ids[0], CgroupPerms: "rw"}},
	}, nil
}

func (f *fileInstance) Stats(_ context.Context, ids []string) (map[string]*device.DeviceStats, error) {
	all := map[string]*device.DeviceStats{}
	for _, id := range ids {
		all[id] = &device.DeviceStats{Summary: &structs.StatValue{IntNumeratorVal: pointer.Of(int64(len(id)))}}
	}
	return all, nil
}

// rig is Nomad's device manager with this test binary as a plugin that lists the devices of a fileWorld.
type rig struct {
	*conformance.Manager
	t   *testing.T
	dir string
}

// PluginBinary describes this test binary as a plugin that runs in this role with this configuration.
func PluginBinary(t *testing.T, role, config string) conformance.Binary {
	t.Helper()
	exe, err := os.Executable()
	must.NoError(t, err)
	return conformance.Binary{Name: "nomad-device-" + role, Exe: exe, Env: map[string]string{roleVar: role},
		Config: config}
}

func startRig(t *testing.T, w fileWorld, more ...string) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir()}
	r.set(w)
	r.Manager = conformance.StartManager(t, PluginBinary(t, "plugin", fmt.Sprintf("dir = %q\n%s", r.dir, strings.Join(more,
		"\n"))))
	return r
}

// set replaces the plugin's fileWorld atomically.
func (r *rig) set(w fileWorld) {
	r.t.Helper()
	b, err := json.Marshal(w)
	if err != nil {
		r.t.Fatal(err)
	}
	temp := filepath.Join(r.dir, "world.json.new")
	if err := os.WriteFile(temp, b, 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(temp, filepath.Join(r.dir, "world.json")); err != nil {
		r.t.Fatal(err)
	}
}

// processes returns the number of plugin processes that have scanned.
func (r *rig) processes() int {
	all, _ := filepath.Glob(filepath.Join(r.dir, "scanned-by-*"))
	return len(all)
}

// scanned waits until the plugin has begun n more scans.
func (r *rig) scanned(n int) {
	r.t.Helper()
	scans := func() (n int64) {
		all, _ := filepath.Glob(filepath.Join(r.dir, "scanned-by-*"))
		for _, log := range all {
			if info, err := os.Stat(log); err == nil {
				n += info.Size()
			}
		}
		return n
	}
	before := scans()
	for end := time.Now().Add(soon); scans() < before+int64(n); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%d scans in %s, want %d", scans()-before, soon, n)
		}
	}
}

// quiet fails the test if the node is updated within a second, in which the plugin scans 20 times.
func (r *rig) quiet() {
	r.t.Helper()
	before := r.Updates()
	time.Sleep(time.Second)
	if n := r.Updates() - before; n > 0 {
		r.t.Errorf("%d updates of the node without a change", n)
	}
}
