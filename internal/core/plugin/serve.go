// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/drivers"
	"google.golang.org/grpc"
)

// closeTime is what an implementation's Close may take. go-plugin kills the
// process 2 s after it asked it to end (client.go, Kill).
const closeTime = time.Second

// Serve is all that the main function of a plugin's binary calls. It does a
// role's work, serves the agent that started it until that is done with the
// plugin, or answers a person.
func Serve(p Plugin) {
	for _, role := range p.Roles {
		if role() {
			return
		}
	}
	if os.Getenv(base.Handshake.MagicCookieKey) != base.Handshake.MagicCookieValue {
		os.Exit(p.commandLine(os.Args, os.Stdout, os.Stderr))
	}
	p.serve()
}

func (p Plugin) serve() {
	debug.SetGCPercent(20) // mostly idle, and there on every node: memory counts, collection time does not
	// Nomad reads these lines from stderr and logs each at its own level.
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, JSONFormat: true})

	holdSignals()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	var impl base.BasePlugin
	var own []grpc.ServerOption
	plugins := map[string]goplugin.Plugin{}
	if p.Device != nil {
		d := p.Device(ctx, logger)
		impl = d
		plugins[base.PluginTypeDevice] = &device.PluginDevice{Impl: d}
	} else {
		d := p.Driver(ctx, logger)
		impl = d
		plugins[base.PluginTypeDriver] = drivers.NewDriverPlugin(d, logger)
		own = DriverOptions(d)
	}
	plugins[base.PluginTypeBase] = &base.PluginBase{Impl: impl}

	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: base.Handshake,
		Plugins:         plugins,
		Logger:          logger,
		// drivers.Serve leaves no room for these options
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			server := grpc.NewServer(append(append(opts, grpc.MaxRecvMsgSize(maxMessage)), own...)...)
			go endWithAgent(logger, server.Stop) // which closes the listener, whose file goes with it
			return server
		},
	})

	cancel()
	if c, ok := impl.(io.Closer); ok {
		closeWithin(c, closeTime, logger)
	}
}

// DriverOptions are what a gRPC server of this driver needs besides Nomad's server half
// (drivers.PluginDriver), wherever it is reached.
func DriverOptions(d drivers.DriverPlugin) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.ChainUnaryInterceptor(complete(d)),
	}
}

// maxMessage is for what Nomad sends, which it does not limit itself: the 4 MiB that
// are gRPC's default would keep a task from being recovered whose arguments and
// environment the kernel takes, and answer what it does not take without a reason
// that a job's author understands.
const maxMessage = 64 << 20

func closeWithin(c io.Closer, limit time.Duration, logger hclog.Logger) {
	done := make(chan error, 1)
	go func() { done <- c.Close() }()
	select {
	case err := <-done:
		if err != nil {
			logger.Error("failed to close plugin", "error", err)
		}
	case <-time.After(limit):
		logger.Warn("plugin did not close in time", "limit", limit.String())
	}
}
