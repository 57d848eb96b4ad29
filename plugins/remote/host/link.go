// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/structs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/outrider-dev/outrider/plugins/remote/shim"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
	"github.com/outrider-dev/outrider/plugins/remote/upload"
)

// Link is one connection to a host, and the driver there. It is never made anew: calls on one that was lost fail.
type Link struct {
	Driver Driver      // by Nomad's own client
	Shim   shim.Client // the calls that Nomad's protocol does not have
	Dir    string      // of everything on the host
	Arch   string

	Address string // the host's IP address, empty if it is not known

	ctx context.Context // ends with the connection
	end context.CancelFunc

	mu    sync.Mutex
	about *drivers.Fingerprint // the last one of the host's driver
}

// Driver is a driver that can run commands in tasks.
type Driver interface {
	drivers.DriverPlugin
	drivers.ExecTaskStreamingRawDriver
}

// newLink returns when the shim answers. The ssh connection is the link's if there is no error.
func newLink(
	ctx context.Context, conn *ssh.Conn, stream net.Conn, look upload.Host, event func(*drivers.TaskEvent),
) (*Link, error) {
	l := &Link{Dir: look.Dir, Arch: look.Arch}
	l.ctx, l.end = context.WithCancel(context.Background())
	carried := &carrier{Conn: stream, over: l.end}
	client, err := grpc.NewClient("passthrough:///host",
		grpc.WithContextDialer(carried.dial), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithInitialWindowSize(shim.Window), grpc.WithInitialConnWindowSize(shim.AllWindows),
		grpc.WithReadBufferSize(shim.Buffer), grpc.WithWriteBufferSize(shim.Buffer),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: shim.KeepAliveTime, Timeout: shim.KeepAliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithChainUnaryInterceptor(checkReply), grpc.WithChainStreamInterceptor(checkStream),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(maxMessage), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	context.AfterFunc(l.ctx, func() {
		_ = conn.Close() // first: the client waits for its reader
		_ = client.Close()
	})
	made, err := drivers.NewDriverPlugin(nil, hclog.NewNullLogger()).GRPCClient(l.ctx, nil, client)
	if err != nil {
		l.end()
		return nil, err
	}
	l.Driver, l.Shim = made.(Driver), shim.Client{Conn: client}
	if err := l.greet(ctx, event); err != nil {
		l.end()
		return nil, fmt.Errorf("the program on it does not serve: %w", carried.end(err))
	}
	return l, nil
}

// maxMessage is that of an agent and a plugin (internal/core/plugin).
const maxMessage = 64 << 20

// greet waits for the first answers, and has events reach the node.
func (l *Link) greet(ctx context.Context, event func(*drivers.TaskEvent)) error {
	stop := context.AfterFunc(ctx, l.end)
	defer stop()
	fingerprints, err := l.Driver.Fingerprint(l.ctx)
	if err != nil {
		return err
	}
	first, ok := <-fingerprints
	if !ok {
		return errors.New("it does not answer")
	}
	if first.Err != nil {
		return first.Err
	}
	l.note(first)
	events, err := l.Driver.TaskEvents(l.ctx)
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
	go func() {
		for f := range fingerprints {
			if f.Err == nil {
				l.note(f)
			}
		}
	}()
	return nil
}

func (l *Link) note(f *drivers.Fingerprint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.about = f
}

// About returns an attribute of the host's driver, such as "cgroup". One that it does not have has no value.
func (l *Link) About(name string) *structs.Attribute {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.about.Attributes["driver."+shim.Name+"."+name], &structs.Attribute{})
}

// Healthy returns what the host's driver says of itself, nil if it is healthy.
func (l *Link) Healthy() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.about.Health != drivers.HealthStateHealthy {
		return errors.New(l.about.HealthDescription)
	}
	return nil
}

// Done is closed when the connection has ended.
func (l *Link) Done() <-chan struct{} { return l.ctx.Done() }

// Alive asks the shim for a sign of life, and ends the link if there is none: after an error it tells whether that
// was the host's word, or the connection's end.
func (l *Link) Alive() bool {
	if _, err := l.Driver.PluginInfo(); err != nil {
		l.end()
	}
	return l.ctx.Err() == nil
}

// carrier carries gRPC's connection, and notes its end: gRPC closes what has ended, and where no answer comes.
type carrier struct {
	net.Conn
	taken atomic.Bool
	over  func()

	mu   sync.Mutex
	said error // by the program at its end
}

// dial is for gRPC: there is no second connection.
func (c *carrier) dial(context.Context, string) (net.Conn, error) {
	if c.taken.Swap(true) {
		return nil, errLost
	}
	return c, nil
}

var errLost = errors.New("the connection was lost")

func (c *carrier) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.said == nil && !errors.Is(err, net.ErrClosed) {
			c.said = err
		}
	}
	return n, err
}

func (c *carrier) Close() error {
	c.over()
	return c.Conn.Close()
}

// end is what ended the connection, as well as it is known.
func (c *carrier) end(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return cmp.Or(c.said, err)
}
