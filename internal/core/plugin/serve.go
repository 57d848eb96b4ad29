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

// closeTime is how long Close of an implementation may take. It is shorter than the 2 s after which go-plugin kills a
// process that it has asked to end (client.go, Kill).
const closeTime = time.Second

// Serve is the main function of a plugin's binary. If the process was started for a role, Serve performs the role. If
// an agent started it, Serve serves the plugin until the agent no longer needs it. Otherwise, Serve runs a command.
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
	debug.SetGCPercent(20) // mostly idle, and on every node: memory matters more than CPU time
	// Nomad reads JSON lines from the plugin's stderr, and logs each at the level in the line.
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
		// drivers.Serve is not used, because it does not accept these options
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			server := grpc.NewServer(append(append(opts, grpc.MaxRecvMsgSize(maxMessage)), own...)...)
			go endWithAgent(logger, server.Stop) // Stop closes the listener, which removes its socket
			return server
		},
	})

	cancel()
	if c, ok := impl.(io.Closer); ok {
		closeWithin(c, closeTime, logger)
	}
}

// DriverOptions returns the options for a gRPC server that serves this driver through Nomad's drivers.PluginDriver.
// Every such server needs them, even if it was not started by Serve.
func DriverOptions(d drivers.DriverPlugin) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.ChainUnaryInterceptor(complete(d)),
	}
}

// maxMessage is the maximum size of a message from Nomad, which sets no limit itself. gRPC's default of 4 MiB is too
// low: the arguments and the environment of a running task may be larger, and the task could not be recovered. If they
// are too large even for the kernel, its error explains the reason to the job's author, whereas gRPC's error does not.
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
