// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/drivers/proto"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"

	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/remote/shim"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
)

// Link is a connection to a host, with clients for the driver and the shim there. Once it is lost, all calls fail.
type Link struct {
	About
	Driver  Driver           // Nomad's client for the driver on the host
	Shim    *grpc.ClientConn // for the calls of package shim
	Address string           // the host's IP address, empty if unknown

	conn *ssh.Conn
}

// About describes a host.
type About struct {
	Arch    string `json:"arch,omitempty"`    // as in GOARCH: amd64 or arm64
	Dir     string `json:"dir,omitempty"`     // the plugin's directory there, absolute
	Root    bool   `json:"root"`              // the shim runs as root, so tasks can run as any user
	Cgroup  string `json:"cgroup,omitempty"`  // the cgroup version
	Missing string `json:"missing,omitempty"` // messages about missing optional features
}

// Driver is a driver that can run commands in tasks.
type Driver interface {
	drivers.DriverPlugin
	drivers.ExecTaskStreamingRawDriver
}

// newLink starts the shim on the host, and returns when its driver responds. The link ends when ctx ends.
func newLink(ctx context.Context, c Config) (*Link, error) {
	l, err := upload(ctx, c)
	if err != nil {
		return nil, err
	}
	conn := l.conn
	var taken atomic.Bool
	client, err := grpc.NewClient("passthrough:///host",
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if taken.Swap(true) { // gRPC tries to reconnect, but conn cannot be opened again
				return nil, net.ErrClosed
			}
			return conn, nil // gRPC closes conn when the client is closed, or when a ping gets no response
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithReadBufferSize(shim.Buffer), grpc.WithWriteBufferSize(shim.Buffer),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: shim.KeepAliveTime, Timeout: shim.KeepAliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(checked{encoding.GetCodecV2("proto")}),
			grpc.MaxCallSendMsgSize(maxMessage), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		l.close()
		return nil, err
	}
	context.AfterFunc(conn.Context(), func() {
		l.close() // before client.Close, which waits for a goroutine that reads from conn
		_ = client.Close()
	})
	made, err := drivers.NewDriverPlugin(nil, hclog.NewNullLogger()).GRPCClient(conn.Context(), nil, client)
	if err == nil {
		l.Driver, l.Shim = made.(Driver), client
		err = l.greet(c.Event)
	}
	if err != nil {
		l.close()
		if ended := conn.End(); !errors.Is(ended, net.ErrClosed) { // if this side did not close conn, End has the reason
			err = ended
		}
		return nil, fmt.Errorf("failed to use the driver program on the host: %w", err)
	}
	return l, nil
}

// maxMessage is the maximum size of a message in bytes, the same as for local plugins (internal/core/plugin).
const maxMessage = 64 << 20

// greet reads the fingerprint of the driver on the host, and then passes the driver's events to the function event. It
// returns an error if the driver cannot run tasks.
func (l *Link) greet(event func(*drivers.TaskEvent)) error {
	fingerprints, err := l.Driver.Fingerprint(l.conn.Context())
	if err != nil {
		return err
	}
	first := <-fingerprints
	if first == nil {
		return errors.New("the program sent no fingerprint")
	}
	if first.Err != nil {
		return first.Err
	}
	of := func(name string) *structs.Attribute {
		return cmp.Or(first.Attributes["driver."+shim.Name+"."+name], &structs.Attribute{})
	}
	l.Root, _ = of("root").GetBool()
	cgroup, _ := of("cgroup").GetString()
	l.Cgroup = plain.Line(cgroup, 20)
	message := plain.Line(first.HealthDescription, 0)
	if first.Health != drivers.HealthStateHealthy {
		return errors.New(message)
	}
	l.Missing = strings.TrimPrefix(strings.TrimPrefix(message, drivers.DriverHealthy), "; ")
	events, err := l.Driver.TaskEvents(l.conn.Context())
	if err != nil {
		return err
	}
	go func() { // ends with the connection
		for e := range events {
			if e.Err == nil {
				event(e)
			}
		}
	}()
	return nil
}

func (l *Link) over() bool { return l.conn.Context().Err() != nil }

func (l *Link) close() { _ = l.conn.Close() }

// Alive pings the shim, and ends the link if the shim does not respond. Call it after a failed call: if Alive returns
// true, the host has returned the error; otherwise the connection was lost.
func (l *Link) Alive() bool {
	if _, err := l.Driver.PluginInfo(); err != nil {
		l.close()
	}
	return !l.over()
}

// checked is gRPC's codec for Nomad's messages. It refuses messages that lack a field that Nomad's client dereferences
// without a check (plugins/drivers/client.go). That client trusts local plugins; here, a host could crash the plugin.
type checked struct{ encoding.CodecV2 }

func (c checked) Unmarshal(data mem.BufferSlice, message any) error {
	if err := c.CodecV2.Unmarshal(data, message); err != nil {
		return err
	}
	whole := true
	switch m := message.(type) {
	case *proto.StartTaskResponse:
		whole = m.GetHandle().GetConfig() != nil
	case *proto.ExecTaskResponse:
		whole = m.GetResult() != nil
	case *proto.InspectTaskResponse:
		whole = m.GetTask().GetResult() != nil
	case *proto.TaskStatsResponse:
		whole = m.GetStats().GetAggResourceUsage() != nil
	}
	if !whole {
		return fmt.Errorf("the host's response is incomplete: %T", message)
	}
	return nil
}
