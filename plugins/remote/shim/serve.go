// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/shim/protocol"
)

// The limits of a connection. A client that does not answer for pingAfter and pingTime is gone.
const (
	maxStreams = 4 * maxObjects // three for a task; a call waits where there are more
	pingAfter  = 15 * time.Second
	pingTime   = 15 * time.Second
)

// Serve answers one client until its connection ends, and closes that. Calls that are under way
// then are given some time.
func (s *Shim) Serve(conn net.Conn) error {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	var calls sync.WaitGroup
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			defer calls.Done()
			s.handle(w, r)
		}),
		Protocols: &protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, SendPingTimeout: pingAfter, PingTimeout: pingTime,
			MaxReceiveBufferPerStream: 1 << 20, MaxReceiveBufferPerConnection: protocol.ConnectionBuffer,
		},
		MaxHeaderBytes: 16 << 10,
		ErrorLog:       log.New(logWriter(s.cfg.Log), "", 0),
	}
	l := &oneListener{conn: conn, closed: make(chan struct{})}
	if err := server.Serve(l); !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		calls.Wait()
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
	}
	return nil
}

type logWriter func(format string, args ...any)

func (l logWriter) Write(b []byte) (int, error) {
	l("%s", strings.TrimSpace(string(b)))
	return len(b), nil
}

// oneListener accepts one connection, and ends with it.
type oneListener struct {
	conn   net.Conn
	once   sync.Once
	given  sync.Once
	closed chan struct{}
}

func (l *oneListener) Accept() (conn net.Conn, err error) {
	l.given.Do(func() { conn = &servedConn{l.conn, l} })
	if conn != nil {
		return conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *oneListener) Addr() net.Addr { return l.conn.LocalAddr() }

type servedConn struct {
	net.Conn
	l *oneListener
}

func (c *servedConn) Close() error {
	err := c.Conn.Close()
	_ = c.l.Close()
	return err
}

// callTime bounds a call that waits for nothing but this host.
const callTime = 5 * time.Minute

func (s *Shim) handle(w http.ResponseWriter, r *http.Request) {
	op, found := strings.CutPrefix(r.URL.Path, protocol.Path)
	if !found || r.Method != http.MethodPost {
		http.NotFound(w, r)
		return
	}
	if op == protocol.OpExec { // its answer is a stream
		s.serveExec(w, r)
		return
	}
	if err := s.bind(); err != nil {
		answer(w, protocol.Reply{}, err)
		return
	}
	if op == protocol.OpPut {
		query := r.URL.Query()
		epoch, err := strconv.ParseUint(query.Get("epoch"), 10, 64)
		if err == nil {
			ref := endpoint.Ref{Name: query.Get("name"), Epoch: epoch, Start: query.Get("start")}
			err = s.put(r.Context(), ref, r.Body)
		}
		answer(w, protocol.Reply{}, err)
		return
	}
	var q protocol.Request
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, protocol.MaxBody))
	if err == nil {
		err = json.Unmarshal(b, &q)
	}
	if err != nil {
		answer(w, protocol.Reply{}, fmt.Errorf("request can't be read: %w", err))
		return
	}
	if op == protocol.OpLogs {
		s.serveLogs(w, r, &q)
		return
	}
	ctx := r.Context()
	if op != protocol.OpWatch && op != protocol.OpStop {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTime)
		defer cancel()
	}
	reply, err := s.call(ctx, op, &q)
	answer(w, reply, err)
}

// call makes a call that has one answer.
func (s *Shim) call(ctx context.Context, op string, q *protocol.Request) (p protocol.Reply, err error) {
	switch op {
	case protocol.OpProbe:
		p.Facts, err = s.probe(ctx)
	case protocol.OpList:
		p.Records, err = s.list(ctx)
	case protocol.OpGet:
		p.Record, err = s.get(ctx, q.Ref.Name)
	case protocol.OpCreate:
		err = s.create(ctx, q.Record, q.Lease)
	case protocol.OpTake:
		if q.Owner == nil {
			return p, errors.New("an owner is missing")
		}
		p.Record, err = s.take(ctx, q.Ref, *q.Owner, q.Lease)
	case protocol.OpPrepare:
		err = s.prepare(ctx, q.Ref, q.Spec)
	case protocol.OpStart:
		p.Record, err = s.start(ctx, q.Ref, q.Spec)
	case protocol.OpRenew:
		err = s.renew(ctx, q.Ref, q.Mutable, q.Lease)
	case protocol.OpRelease:
		err = s.release(ctx, q.Ref, q.Mutable, q.Reason)
	case protocol.OpSignal:
		err = s.signal(ctx, q.Ref, q.Signal)
	case protocol.OpStop:
		p.Record, err = s.stop(ctx, q.Ref, q.Signal, q.Grace, q.Reason)
	case protocol.OpRemove:
		err = s.remove(ctx, q.Ref)
	case protocol.OpWatch:
		p.Record, err = s.watch(ctx, q.Ref)
	case protocol.OpStats:
		p.Usage, err = s.stats(ctx, q.Ref.Name)
	default:
		err = fmt.Errorf("this shim has no operation %q", op)
	}
	return p, err
}

// answer sends a reply.
func answer(w http.ResponseWriter, p protocol.Reply, err error) {
	p.Error = protocol.ToError(err)
	b, err := json.Marshal(p)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b) // a client that is gone asks again
}
