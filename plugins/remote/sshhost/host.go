// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package sshhost is the endpoint.Endpoint of a host that is reached by a connection to a shim
// (package shim) there. All calls and streams share that connection, by HTTP/2.
package sshhost

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/shim/protocol"
)

// Config is what a Host needs to know.
type Config struct {
	// Dial returns a connection to the standard input and output of a new shim
	// (`outrider-shim serve`). Closing it ends the shim. It is called when a call needs a
	// connection, and by one goroutine at a time.
	Dial func(ctx context.Context) (net.Conn, error)

	// Lease is how long an owner owns without a Renew.
	Lease time.Duration

	// Address is where other machines reach the host's ports.
	Address string
}

// Host is a host.
type Host struct {
	cfg       Config
	transport *http.Transport

	dialing chan struct{} // holds a value while one dials
	mu      sync.Mutex
	conn    *http.ClientConn
	closed  bool
}

var _ endpoint.Endpoint = (*Host)(nil)

// The limits of a connection. A host that does not answer for pingAfter and pingTime is gone.
const (
	pingAfter   = 10 * time.Second
	pingTime    = 10 * time.Second
	bannerTime  = 20 * time.Second
	bannerLimit = 64 << 10
)

// New returns a Host. It connects with the first call.
func New(cfg Config) *Host {
	h := &Host{cfg: cfg, dialing: make(chan struct{}, 1)}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	h.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return h.dial(ctx) },
		Protocols:   &protocols,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingTime, MaxReceiveBufferPerStream: 2 << 20,
			MaxReceiveBufferPerConnection: protocol.ConnectionBuffer, MaxReadFrameSize: 256 << 10,
		},
		DisableCompression: true,
	}
	return h
}

// dial connects, and waits for the shim's first word.
func (h *Host) dial(ctx context.Context) (net.Conn, error) {
	conn, err := h.cfg.Dial(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, bannerTime)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	seen, err := skipTo(conn, protocol.Banner)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("the shim on the host did not begin to serve: %w%s", err, seen)
	}
	return conn, nil
}

// skipTo reads up to the end of what is wanted, a byte at a time: what is behind it is HTTP. It
// returns the last of what it saw before an error.
func skipTo(conn io.Reader, want string) (seen string, err error) {
	var got []byte
	b := make([]byte, 1)
	for len(got) < bannerLimit {
		if _, err := io.ReadFull(conn, b); err != nil {
			if len(got) > 0 {
				seen = fmt.Sprintf(" after %q", got[max(0, len(got)-200):])
			}
			return seen, err
		}
		if got = append(got, b[0]); bytes.HasSuffix(got, []byte(want)) {
			return "", nil
		}
	}
	return "", fmt.Errorf("it wrote %d bytes of something else", len(got))
}

// connect returns a connection that works, as far as is known.
func (h *Host) connect(ctx context.Context) (*http.ClientConn, error) {
	if c, err := h.current(); c != nil || err != nil {
		return c, err
	}
	select {
	case h.dialing <- struct{}{}:
		defer func() { <-h.dialing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", endpoint.ErrUnreachable, ctx.Err())
	}
	if c, err := h.current(); c != nil || err != nil {
		return c, err
	}
	c, err := h.transport.NewClientConn(ctx, "http", "shim:80")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", endpoint.ErrUnreachable, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		c.Close()
		return nil, errClosed
	}
	h.conn = c
	return c, nil
}

var errClosed = fmt.Errorf("%w: it was closed", endpoint.ErrUnreachable)

func (h *Host) current() (*http.ClientConn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, errClosed
	}
	if h.conn != nil && h.conn.Err() != nil {
		h.conn.Close()
		h.conn = nil
	}
	return h.conn, nil
}

// Close is part of endpoint.Endpoint.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.conn == nil {
		return nil
	}
	err := h.conn.Close()
	h.conn = nil
	return err
}

// post makes a request. The body of the answer is the caller's to close.
func (h *Host) post(ctx context.Context, op string, query url.Values, body io.Reader) (*http.Response, error) {
	c, err := h.connect(ctx)
	if err != nil {
		return nil, err
	}
	target := url.URL{Scheme: "http", Host: "shim", Path: protocol.Path + op, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), body)
	if err != nil {
		return nil, err
	}
	answer, err := c.RoundTrip(r)
	if err != nil {
		return nil, unreachable(ctx, err)
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("%w: the shim answered %s", endpoint.ErrUnreachable, answer.Status)
	}
	return answer, nil
}

func unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return fmt.Errorf("%w: %w", endpoint.ErrUnreachable, err)
}

// call makes a call that has one answer.
func (h *Host) call(ctx context.Context, op string, q protocol.Request) (*protocol.Reply, error) {
	b, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	if len(b) > protocol.MaxBody {
		return nil, errors.New("the request is too long for the host")
	}
	answer, err := h.post(ctx, op, nil, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	limit := protocol.MaxReply
	if op == protocol.OpList {
		limit = protocol.MaxBody
	}
	return readReply(ctx, answer.Body, limit)
}

// readReply reads an answer. The host is not trusted to send a short one.
func readReply(ctx context.Context, body io.Reader, limit int) (*protocol.Reply, error) {
	b, err := io.ReadAll(io.LimitReader(body, int64(limit)+1))
	if err != nil {
		return nil, unreachable(ctx, err)
	}
	if len(b) > limit {
		return nil, fmt.Errorf("the shim's answer has more than %d bytes", limit)
	}
	var p protocol.Reply
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("the shim's answer can't be read: %w", err)
	}
	if p.Error != nil {
		return nil, p.Error.Err()
	}
	return &p, nil
}

// record makes a call that is answered by a record.
func (h *Host) record(ctx context.Context, op string, q protocol.Request) (*endpoint.Record, error) {
	p, err := h.call(ctx, op, q)
	if err == nil && p.Record == nil {
		err = errors.New("the shim's answer has no record")
	}
	if err != nil {
		return nil, err
	}
	return p.Record, nil
}

// Probe is part of endpoint.Endpoint.
func (h *Host) Probe(ctx context.Context) (*endpoint.Facts, error) {
	p, err := h.call(ctx, protocol.OpProbe, protocol.Request{})
	if err == nil && p.Facts == nil {
		err = errors.New("the shim's answer has no facts")
	}
	if err != nil {
		return nil, err
	}
	p.Facts.Address = h.cfg.Address
	return p.Facts, nil
}

// List is part of endpoint.Endpoint.
func (h *Host) List(ctx context.Context) ([]*endpoint.Record, error) {
	p, err := h.call(ctx, protocol.OpList, protocol.Request{})
	if err != nil {
		return nil, err
	}
	return p.Records, nil
}

// Get is part of endpoint.Endpoint.
func (h *Host) Get(ctx context.Context, name string) (*endpoint.Record, error) {
	return h.record(ctx, protocol.OpGet, protocol.Request{Ref: endpoint.Ref{Name: name}})
}

// Create is part of endpoint.Endpoint.
func (h *Host) Create(ctx context.Context, r *endpoint.Record) error {
	_, err := h.call(ctx, protocol.OpCreate, protocol.Request{Record: r, Lease: h.cfg.Lease})
	return err
}

// Take is part of endpoint.Endpoint.
func (h *Host) Take(ctx context.Context, ref endpoint.Ref, o endpoint.Owner) (*endpoint.Record, error) {
	return h.record(ctx, protocol.OpTake, protocol.Request{Ref: ref, Owner: &o, Lease: h.cfg.Lease})
}

// Put is part of endpoint.Endpoint.
func (h *Host) Put(ctx context.Context, ref endpoint.Ref, files io.Reader) error {
	query := url.Values{"name": {ref.Name}, "epoch": {strconv.FormatUint(ref.Epoch, 10)}, "start": {ref.Start}}
	answer, err := h.post(ctx, protocol.OpPut, query, files)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = readReply(ctx, answer.Body, protocol.MaxReply)
	return err
}

// Prepare is part of endpoint.Endpoint. It makes no progress to tell of.
func (h *Host) Prepare(ctx context.Context, ref endpoint.Ref, s *endpoint.Spec, _ func(string)) error {
	_, err := h.call(ctx, protocol.OpPrepare, protocol.Request{Ref: ref, Spec: s})
	return err
}

// Start is part of endpoint.Endpoint.
func (h *Host) Start(ctx context.Context, ref endpoint.Ref, s *endpoint.Spec) (*endpoint.Record, error) {
	return h.record(ctx, protocol.OpStart, protocol.Request{Ref: ref, Spec: s})
}

// Renew is part of endpoint.Endpoint.
func (h *Host) Renew(ctx context.Context, ref endpoint.Ref, m endpoint.Mutable) error {
	_, err := h.call(ctx, protocol.OpRenew, protocol.Request{Ref: ref, Mutable: m, Lease: h.cfg.Lease})
	return err
}

// Release is part of endpoint.Endpoint.
func (h *Host) Release(ctx context.Context, ref endpoint.Ref, m endpoint.Mutable, reason string) error {
	_, err := h.call(ctx, protocol.OpRelease, protocol.Request{Ref: ref, Mutable: m, Reason: reason})
	return err
}

// Signal is part of endpoint.Endpoint.
func (h *Host) Signal(ctx context.Context, ref endpoint.Ref, signal string) error {
	_, err := h.call(ctx, protocol.OpSignal, protocol.Request{Ref: ref, Signal: signal})
	return err
}

// Stop is part of endpoint.Endpoint.
func (h *Host) Stop(ctx context.Context, ref endpoint.Ref, signal string, grace time.Duration, reason string) (
	*endpoint.Record, error) {
	return h.record(ctx, protocol.OpStop, protocol.Request{Ref: ref, Signal: signal, Grace: grace, Reason: reason})
}

// Remove is part of endpoint.Endpoint.
func (h *Host) Remove(ctx context.Context, ref endpoint.Ref) error {
	_, err := h.call(ctx, protocol.OpRemove, protocol.Request{Ref: ref})
	return err
}

// Watch is part of endpoint.Endpoint.
func (h *Host) Watch(ctx context.Context, ref endpoint.Ref) (*endpoint.Record, error) {
	return h.record(ctx, protocol.OpWatch, protocol.Request{Ref: ref})
}

// Stats is part of endpoint.Endpoint.
func (h *Host) Stats(ctx context.Context, name string) (*endpoint.Usage, error) {
	p, err := h.call(ctx, protocol.OpStats, protocol.Request{Ref: endpoint.Ref{Name: name}})
	if err == nil && p.Usage == nil {
		err = errors.New("the shim's answer has no statistics")
	}
	if err != nil {
		return nil, err
	}
	return p.Usage, nil
}
