// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/outrider-dev/outrider/internal/core/fingerprint"
	"github.com/outrider-dev/outrider/internal/core/plugin"
)

// Fingerprint is part of drivers.DriverPlugin.
func (d *Driver) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	kick := fingerprint.NewKicker()
	return fingerprint.Loop[*drivers.Fingerprint]{
		Probe: func(ctx context.Context) (*drivers.Fingerprint, error) {
			f, again, err := d.probe(ctx)
			if again > 0 {
				time.AfterFunc(again, kick.Kick)
			}
			return f, err
		},
		Failed: d.failed, Period: 30 * time.Second, Kick: kick,
	}.Run(ctx), nil
}

// Undetected is the error that a Fingerprinter or Prober returns if this node lacks the software that the driver needs
// to run programs. Nomad then shows the driver as undetected instead of unhealthy, like its own java driver without a
// JVM (drivers.HealthStateUndetected).
type Undetected string

func (u Undetected) Error() string { return string(u) }

// failed returns the fingerprint after a failed probe.
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

func (d *Driver) probe(ctx context.Context) (f *drivers.Fingerprint, again time.Duration, err error) {
	var node Node
	if e, ok := d.instance.Load().engine.(Prober); ok {
		if node, err = e.Probe(ctx); err != nil {
			return nil, 0, err
		}
	}
	for _, id := range node.Removed {
		d.forget(id)
	}
	var own map[string]*pstructs.Attribute
	if i, ok := optional[Fingerprinter](d); ok {
		if own, err = i.Fingerprint(ctx); err != nil {
			return nil, node.Again, err
		}
	}
	all := map[string]*pstructs.Attribute{"version": pstructs.NewStringAttribute(plugin.Version())}
	maps.Copy(all, node.Attributes)
	maps.Copy(all, own)
	attributes := map[string]*pstructs.Attribute{"driver." + d.name: pstructs.NewBoolAttribute(true)}
	for name, a := range all {
		attributes["driver."+d.name+"."+name] = a
	}
	return &drivers.Fingerprint{
		Attributes: attributes, Health: drivers.HealthStateHealthy,
		HealthDescription: strings.Join(append([]string{drivers.DriverHealthy}, node.Missing...), "; "),
	}, node.Again, nil
}
