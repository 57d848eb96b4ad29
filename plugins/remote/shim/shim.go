// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package shim is the part of the plugin that runs on a host. It is a copy of the plugin's program, and runs the core's
// supervisor on the host as a plugin does on a node. A node calls the shim over one SSH session, with Nomad's driver
// protocol and the calls of this package. The shim ends with the session; tasks keep running.
package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	core "github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/plugin"
	"github.com/outrider-dev/outrider/internal/core/schema"
)

// roleName is the first argument that makes the program run as the shim.
const roleName = "outrider-shim"

// Options are the options that a node passes to its shim.
type Options struct {
	Dir            string   `json:"dir"` // the plugin's directory on this host, absolute
	DeniedHostUIDs string   `json:"denied_host_uids,omitempty"`
	DeniedHostGIDs string   `json:"denied_host_gids,omitempty"`
	DeniedEnvvars  []string `json:"denied_envvars,omitempty"`
}

// Args returns the program's arguments for these options.
func (o Options) Args() []string {
	text, _ := json.Marshal(o) // cannot fail
	return []string{roleName, string(text)}
}

// KeepAliveTime is the interval of a node's keepalive pings to the shim, and KeepAliveTimeout the wait for a response.
const (
	KeepAliveTime    = 10 * time.Second
	KeepAliveTimeout = 20 * time.Second
)

// Buffer is the size of gRPC's buffers in bytes. Their default size is for small messages.
const Buffer = 256 << 10

// Role returns a function for plugin.Plugin.Roles, which runs the shim if the program's arguments are those of Args. p
// is the driver on this host; its Command gets the job's configuration.
func Role[C, T any](p core.Plugin[C, T]) func() bool {
	return func() bool {
		if len(os.Args) != 3 || os.Args[1] != roleName {
			return false
		}
		if err := serve(p, os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return true
	}
}

func serve[C, T any](p core.Plugin[C, T], text string) error {
	var o Options
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return fmt.Errorf("failed to parse the options that the plugin passed to the host: %w", err)
	}
	dir, err := owndir.Make(o.Dir, 0o711)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Chmod(0o711); err != nil { // tasks of other users must reach their directories
		return err
	}
	o.Dir = dir.Name()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	logger := hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: os.Stderr})
	h := newHost(core.New(ctx, logger, p), o, logger)
	defer h.Close()
	if err := h.configure(o); err != nil {
		return err
	}
	go h.endOrphans(ctx)
	return h.serve(&stdio{Reader: os.Stdin, Writer: os.Stdout, closed: make(chan struct{})}, logger)
}

// configure configures the driver as an agent would.
func (h *host) configure(o Options) error {
	options := schema.Of[core.PluginOptions]().Default()
	options.StateDir, options.DeniedEnvvars = o.Dir, o.DeniedEnvvars
	options.DeniedHostUIDs, options.DeniedHostGIDs = o.DeniedHostUIDs, o.DeniedHostGIDs
	var config []byte
	err := base.MsgPackEncode(&config, &options)
	if err != nil {
		return err
	}
	agent := &base.AgentConfig{Driver: &base.ClientDriverConfig{}}
	return h.SetConfig(&base.Config{ApiVersion: drivers.ApiVersion010, PluginConfig: config, AgentConfig: agent})
}

// serve serves the driver and this package's calls until the connection ends.
func (h *host) serve(conn *stdio, logger hclog.Logger) error {
	options := append(plugin.DriverOptions(h), grpc.ChainUnaryInterceptor(h.ofOwner),
		grpc.ReadBufferSize(Buffer), grpc.WriteBufferSize(Buffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: KeepAliveTimeout, Timeout: KeepAliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: KeepAliveTime / 2, PermitWithoutStream: true}))
	server := grpc.NewServer(options...)
	if err := drivers.NewDriverPlugin(h, logger).GRPCServer(nil, server); err != nil {
		return err
	}
	if err := (&base.PluginBase{Impl: h}).GRPCServer(nil, server); err != nil {
		return err
	}
	server.RegisterService(&service, h)
	go func() { _ = server.Serve(conn) }()
	<-conn.closed // gRPC closes conn when the connection ends or a ping gets no response; Serve may still hang in a read
	return nil
}

// stdio is this process's standard input and output as a connection, and a listener that accepts only this connection.
type stdio struct {
	io.Reader
	io.Writer
	taken  atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (s *stdio) Accept() (net.Conn, error) {
	if !s.taken.Swap(true) {
		return s, nil
	}
	<-s.closed
	return nil, net.ErrClosed
}

func (s *stdio) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (*stdio) Addr() net.Addr                   { return &net.UnixAddr{Name: "stdio", Net: "unix"} }
func (s *stdio) LocalAddr() net.Addr            { return s.Addr() }
func (s *stdio) RemoteAddr() net.Addr           { return s.Addr() }
func (*stdio) SetDeadline(time.Time) error      { return nil }
func (*stdio) SetReadDeadline(time.Time) error  { return nil }
func (*stdio) SetWriteDeadline(time.Time) error { return nil }
