package driver

import (
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/fingerprint"
	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/supervisor"
)

// Fingerprint is part of drivers.DriverPlugin.
func (d *Driver) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	return fingerprint.Loop[*drivers.Fingerprint]{
		Probe:  d.probe,
		Period: 30 * time.Second,
		Failed: func(_ *drivers.Fingerprint, _ bool, err error) *drivers.Fingerprint { return d.failed(err) },
	}.Run(ctx), nil
}

// Undetected is an error of Fingerprinter, which says what is not on this node that the driver
// runs programs with. Nomad shows the driver as it does its own java without a JVM: as undetected
// and not as unhealthy (drivers.HealthStateUndetected).
type Undetected string

func (u Undetected) Error() string { return string(u) }

// failed is what Nomad is told when a probe failed.
func (d *Driver) failed(err error) *drivers.Fingerprint {
	f := &drivers.Fingerprint{
		Attributes: map[string]*pstructs.Attribute{},
		Health:     drivers.HealthStateUnhealthy, HealthDescription: err.Error(),
	}
	var undetected Undetected
	if errors.As(err, &undetected) {
		f.Health = drivers.HealthStateUndetected
		f.Attributes["driver."+d.name+".version"] = pstructs.NewStringAttribute(plugin.Version())
	}
	return f
}

func (d *Driver) probe(ctx context.Context) (*drivers.Fingerprint, error) {
	d.sweep() // an agent asks as long as it uses the driver, and nobody else does
	if root := d.stateRoot(); root != "" {
		if err := owned(root); err != nil {
			return nil, err
		}
	}
	var own map[string]*pstructs.Attribute
	if i, ok := optional[Fingerprinter](d); ok {
		var err error
		if own, err = i.Fingerprint(ctx); err != nil {
			return nil, err
		}
	}
	support := cgroup.Detect("")
	d.mu.Lock()
	collection := d.options.LogCollection
	d.mu.Unlock()
	attributes := map[string]*pstructs.Attribute{
		"driver." + d.name: pstructs.NewBoolAttribute(true),
	}
	all := map[string]*pstructs.Attribute{
		"version":         pstructs.NewStringAttribute(plugin.Version()),
		"cgroup":          pstructs.NewStringAttribute(string(support.Mode)),
		"log_collection":  pstructs.NewStringAttribute(collection),
		"pidfd_exit_info": pstructs.NewBoolAttribute(tellsExit()),
		"landlock_abi":    pstructs.NewIntAttribute(landlockABI(), ""),
		"root":            pstructs.NewBoolAttribute(os.Geteuid() == 0),
	}
	maps.Copy(all, own)
	for name, a := range all {
		attributes["driver."+d.name+"."+name] = a
	}
	return &drivers.Fingerprint{
		Attributes: attributes, Health: drivers.HealthStateHealthy, HealthDescription: healthInWords(support),
	}, nil
}

// healthInWords says what is missing though tasks run.
func healthInWords(s cgroup.Support) string {
	var missing []string
	if s.Missing != "" {
		missing = append(missing, s.Missing)
	}
	if os.Geteuid() != 0 {
		missing = append(missing, "the agent is not root, so tasks run as its own user")
	}
	if len(missing) == 0 {
		return drivers.DriverHealthy
	}
	return drivers.DriverHealthy + "; " + strings.Join(missing, "; ")
}

// tellsExit is asked once: the kernel does not change under a process.
var tellsExit = sync.OnceValue(supervisor.TellsExit)

// landlockABI is the version of Landlock that the kernel has, 0 for none
// (landlock_create_ruleset(2), LANDLOCK_CREATE_RULESET_VERSION).
func landlockABI() int64 {
	const version = 1
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, version)
	if errno != 0 {
		return 0
	}
	return int64(v)
}
