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

// closeTime limits an implementation's Close. go-plugin kills the process 2 s after asking it to
// end (client.go, Kill).
const closeTime = time.Second

// Serve is the entire main function of a plugin's binary. It performs a role, serves the agent that
// started the process until the agent no longer needs the plugin, or runs a command.
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
	debug.SetGCPercent(20) // mostly idle and on every node: memory matters more than collection time
	// Nomad reads these lines from stderr and logs each at its level.
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
		// drivers.Serve does not accept these options
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			server := grpc.NewServer(append(append(opts, grpc.MaxRecvMsgSize(maxMessage)), own...)...)
			go endWithAgent(logger, server.Stop) // closes the listener, which removes its socket
			return server
		},
	})

	cancel()
	if c, ok := impl.(io.Closer); ok {
		closeWithin(c, closeTime, logger)
	}
}

// DriverOptions returns the options that a gRPC server of this driver needs in addition to Nomad's
// implementation (drivers.PluginDriver), regardless of its listener.
func DriverOptions(d drivers.DriverPlugin) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.ChainUnaryInterceptor(complete(d)),
	}
}

// maxMessage limits messages from Nomad, which sets no limit itself. With gRPC's default of 4 MiB,
// a task could not be recovered although the kernel accepts its arguments and environment. If the
// kernel does not accept them, the job's author would get an error that does not explain the
// reason.
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
