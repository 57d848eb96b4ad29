package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"

	"github.com/outrider-dev/outrider/internal/core/fingerprint"
	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/schema"
)

// Kind is what distinguishes one device plugin from another. C is its
// configuration, the agent's plugin block.
type Kind[C any] struct {
	// Name is the plugin's, as the agent's log has it.
	Name string

	// Summary says in one sentence what it is for.
	Summary string

	// Configure makes of a configuration, validated, what the plugin has to give. It
	// must have no effect on the machine and not look at it: Nomad also configures
	// plugins just to see whether it works, and does not start if it does not. The
	// logger is the plugin's, for later.
	Configure func(C, hclog.Logger) (Supply, error)

	// Commands are for a person: nomad-device-usb list.
	Commands []plugin.Command
}

// Plugin implements device.DevicePlugin for any Kind. Nomad calls it from several
// goroutines.
type Plugin struct {
	kind   kind
	logger hclog.Logger
	ctx    context.Context
	kick   fingerprint.Kicker // asks the running stream for a scan

	supply  atomic.Pointer[Supply]   // nil before SetConfig
	current atomic.Pointer[snapshot] // what is published
	leasing gate                     // held while a Lessor is at work

	scanning gate        // held by the one goroutine that scans, for:
	ledger   ledger      // the devices
	expiry   *time.Timer // kicks when a grace period ends

	mu         sync.Mutex
	configured []byte             // what supply was made of
	supersede  context.CancelFunc // ends the scans of the last stream
	scans      context.Context    // those that run, nil before the first
	given      bool               // up by Nomad: there is no stream, and reservations scan
}

var _ device.DevicePlugin = (*Plugin)(nil)

// New returns the plugin of a kind. Nothing runs before it is configured and
// asked for a stream. Reservations that wait end with ctx.
func New[C any](ctx context.Context, logger hclog.Logger, k Kind[C]) *Plugin {
	return newPlugin(ctx, logger, &typed[C]{Kind: k, config: schema.Of[C]()})
}

// Main is the whole main function of a device plugin.
func Main[C any](k Kind[C]) {
	t := &typed[C]{Kind: k, config: schema.Of[C]()}
	plugin.Serve(plugin.Plugin{
		Name: k.Name, Summary: k.Summary, Config: t.config, Commands: k.Commands,
		Device: func(ctx context.Context, logger hclog.Logger) device.DevicePlugin {
			return newPlugin(ctx, logger, t)
		},
	})
}

func newPlugin(ctx context.Context, logger hclog.Logger, k kind) *Plugin {
	p := &Plugin{
		kind: k, logger: logger.Named(k.name()), ctx: ctx,
		kick: fingerprint.NewKicker(), leasing: newGate(), scanning: newGate(), ledger: ledger{},
	}
	p.current.Store(newSnapshot())
	return p
}

// PluginInfo is part of base.BasePlugin.
func (p *Plugin) PluginInfo() (*base.PluginInfoResponse, error) {
	return plugin.DeviceInfo(p.kind.name()), nil
}

// ConfigSchema is part of base.BasePlugin.
func (p *Plugin) ConfigSchema() (*hclspec.Spec, error) { return p.kind.schema().Spec(), nil }

// SetConfig is part of base.BasePlugin. Nomad calls it in processes that it ends
// soon, too, and there twice. The same configuration again changes nothing; another
// one counts for reservations at once and for a stream from its start.
func (p *Plugin) SetConfig(c *base.Config) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.supply.Load() != nil && bytes.Equal(p.configured, c.PluginConfig) {
		return nil
	}
	s, err := p.kind.configure(c.PluginConfig, p.logger)
	if err != nil {
		return err
	}
	p.configured = bytes.Clone(c.PluginConfig)
	p.supply.Store(&s)
	return nil
}

// configuredSupply is what SetConfig left. Nomad always calls it before a stream.
func (p *Plugin) configuredSupply() (Supply, error) {
	if s := p.supply.Load(); s != nil {
		return *s, nil
	}
	return Supply{}, errors.New("plugin has no configuration yet")
}

// kind is a Kind without its type parameter.
type kind interface {
	name() string
	schema() schema.Described
	configure(msgpack []byte, logger hclog.Logger) (Supply, error)
}

type typed[C any] struct {
	Kind[C]
	config *schema.Schema[C]
}

func (t *typed[C]) name() string { return t.Name }

func (t *typed[C]) schema() schema.Described { return t.config }

func (t *typed[C]) configure(msgpack []byte, logger hclog.Logger) (Supply, error) {
	config, err := t.config.Decode(msgpack)
	if err != nil {
		return Supply{}, err
	}
	s, err := t.Configure(config, logger)
	if err != nil || s.Disabled {
		return s, err
	}
	return s, s.check()
}

// minPeriod keeps a period that was mistyped from being a busy loop.
const minPeriod = 50 * time.Millisecond

func (s Supply) check() error {
	switch {
	case s.Inventory == nil || s.Reserver == nil:
		return errors.New("the plugin supplies no inventory or no reserver: this is a mistake in the plugin")
	case s.Period < minPeriod:
		return fmt.Errorf("the time between scans is %s: use %s or more", s.Period, minPeriod)
	case s.Settle < 0 || s.Grace < 0:
		return fmt.Errorf("settle time %s or grace %s is negative: use 0s or more", s.Settle, s.Grace)
	}
	return nil
}
