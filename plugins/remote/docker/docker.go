// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

// Package docker is an endpoint.Endpoint for Docker and Podman, by the API of Docker.
//
// An object R is a container R, in which its program runs, and claims R.e1, R.e2, …: containers that
// are created and never started. An engine makes a name once, so one of several that create a claim
// wins. The claim of the highest epoch says who owns the object; its labels say what was so when
// it was created, and a volume what its owner has written since (file). Names are never
// changed: on Podman 4.3.1 two of several that rename to one name may both succeed.
//
// No call of the API is refused by the engine for an old epoch. So the claims are read immediately
// before each call that changes an object, and such a call names a container by its id, which
// nobody can make again. What a former owner can still do is one call that was under way when
// it lost the object. It starts or removes a container that the next owner has replaced
// (Prepare), or writes for a claim that counts no longer: both are harmless. Or it signals a
// program that it owned when it asked, or unpacks one piece of its files (pieceSize), or one larger
// file, maybe over those of the next owner. docs/remote.md tells that.
package docker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/internal/core/plain"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Options say where an engine is.
type Options struct {
	Host string // unix://PATH or tcp://HOST:PORT

	// For TLS, which tcp:// needs: files in PEM.
	CAFile, CertFile, KeyFile string

	// Dial connects instead of the system, such as through SSH, to "unix" and a path, or "tcp" and HOST:PORT.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)

	// Lease is how long an object stays its owner's without Renew. The one of the owner counts.
	Lease time.Duration
}

// Endpoint is an engine.
type Endpoint struct {
	api     *client.Client
	host    string
	lease   time.Duration
	clock   clock
	watches hub
	claimed atomic.Bool // a claim was made

	mu      sync.Mutex
	locks   map[string]*lock     // by name
	owned   map[string]*owned    // by name
	bare    map[string]time.Time // by name: since when an object has been bare, see view
	follows map[string][]*follow // by id of the container
	facts   *endpoint.Facts
	asked   time.Time // when facts were read
}

// owned is what this process knows of an object that it owns or owned.
type owned struct {
	claim claim  // as it was made
	file  file   // as it was written last
	ran   bool   // the program was started
	put   string // the container that has the directories of the task

	dirs map[string]bool // those, by name; it is not changed
}

var _ endpoint.Endpoint = (*Endpoint)(nil)

// New connects to nothing yet.
func New(o Options) (*Endpoint, error) {
	e := &Endpoint{
		lease: o.Lease, locks: map[string]*lock{}, owned: map[string]*owned{}, bare: map[string]time.Time{},
		follows: map[string][]*follow{},
	}
	var opts []client.Opt
	if o.CAFile != "" || o.CertFile != "" {
		config, err := o.tls()
		if err != nil {
			return nil, fmt.Errorf("failed to set up TLS for the engine: %w", err)
		}
		opts = append(opts, client.WithHTTPClient(&http.Client{
			Transport: &http.Transport{TLSClientConfig: config}, CheckRedirect: client.CheckRedirect,
		}))
	}
	opts = append(opts, client.WithHost(o.Host), client.WithResponseHook(func(r *http.Response) {
		if date, err := http.ParseTime(r.Header.Get("Date")); err == nil {
			e.clock.see(date)
		}
		if strings.HasPrefix(r.Header.Get("Server"), "Libpod/") {
			e.clock.podman.Store(true)
		}
		r.Body = bounded(path.Base(r.Request.URL.Path), r.Body)
	}))
	if o.Dial != nil {
		u, err := client.ParseHostURL(o.Host)
		if err != nil {
			return nil, fmt.Errorf("failed to read the engine's address: %w", err)
		}
		opts = append(opts, client.WithDialContext(func(ctx context.Context, _, _ string) (net.Conn, error) {
			return o.Dial(ctx, u.Scheme, u.Host)
		}))
	}
	api, err := client.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("failed to set up the connection to the engine: %w", err)
	}
	e.api, e.host = api, o.Host
	e.watches.endpoint = e
	return e, nil
}

// tls reads the files. That of the client's certificate, and its key, are read again for each connection, since they
// are renewed more often than the plugin is restarted.
func (o *Options) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	ca, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, err
	}
	if !c.RootCAs.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s has no certificate in PEM", o.CAFile)
	}
	if o.CertFile == "" {
		return c, nil
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		return &pair, err
	}
	_, err = c.GetClientCertificate(nil)
	return c, err
}

// Close is part of endpoint.Endpoint. The image of claims takes longer to make than a claim, so it stays until then.
func (e *Endpoint) Close() error {
	e.watches.close()
	if e.claimed.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		e.removeImage(ctx)
	}
	return e.api.Close()
}

// The limits of one answer. The streams of events and of a pull's progress may have any number of elements. When the
// stream of events has reached its limit of bytes, it is opened again.
const (
	maxAnswer   = 64 << 20  // bytes
	maxElements = 1_000_000 // by their commas: what takes a few bytes in JSON takes hundreds in memory
)

// bounded limits what is read of the answer to an operation, whatever its Content-Type.
func bounded(operation string, body io.ReadCloser) io.ReadCloser {
	switch operation {
	case "logs", "archive":
		return body
	case "events", "create":
		return http.MaxBytesReader(nil, body, maxAnswer)
	}
	return &elements{http.MaxBytesReader(nil, body, maxAnswer), 0}
}

// elements is a body that fails when it has more than maxElements.
type elements struct {
	io.ReadCloser
	count int
}

func (e *elements) Read(b []byte) (int, error) {
	n, err := e.ReadCloser.Read(b)
	if e.count += bytes.Count(b[:n], []byte(",")); e.count > maxElements {
		return 0, fmt.Errorf("the answer has more than %d elements", maxElements)
	}
	return n, err
}

// The timeouts of calls of the API. It is then unknown what a call did; each may be repeated.
const (
	closeTime = 2 * time.Second  // of the removal of an image at Close
	askTime   = 10 * time.Second // of a question
	callTime  = time.Minute      // of a change
)

// lock is of one object.
type lock struct {
	held  chan struct{}
	users int // that hold it or wait for it; under Endpoint.mu
}

// begin gives a call that changes an object its time, and the object to it alone. The caller calls end.
func (e *Endpoint) begin(ctx context.Context, name string) (limited context.Context, end func(), err error) {
	limited, cancel := context.WithTimeout(ctx, callTime)
	unlock, err := e.lock(limited, name)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return limited, func() { unlock(); cancel() }, nil
}

// lock lets one call of this process change an object at a time.
func (e *Endpoint) lock(ctx context.Context, name string) (unlock func(), err error) {
	e.mu.Lock()
	l := e.locks[name]
	if l == nil {
		l = &lock{held: make(chan struct{}, 1)}
		e.locks[name] = l
	}
	l.users++
	e.mu.Unlock()
	leave := func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(e.locks, name)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, failed("wait for another change of "+name, ctx.Err())
	}
}

// failed says what failed. It is ErrUnreachable where the engine has not answered.
func failed(what string, err error) error {
	if err == nil {
		return nil
	}
	if text := err.Error(); strings.Contains(text, "\n") { // it becomes the event of a task
		err = oneLine{err, plain.Line(text, 0)}
	}
	if _, ok := errors.AsType[net.Error](err); ok || client.IsErrConnectionFailed(err) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.Canceled) || cerrdefs.IsUnavailable(err) {
		return fmt.Errorf("failed to %s: %w: %w", what, endpoint.ErrUnreachable, err)
	}
	return fmt.Errorf("failed to %s: %w", what, err)
}

type oneLine struct {
	error
	text string
}

func (o oneLine) Error() string { return o.text }
func (o oneLine) Unwrap() error { return o.error }

// unreached reports whether it is unknown what a call did.
func unreached(err error) bool { return errors.Is(err, endpoint.ErrUnreachable) }

func (e *Endpoint) kind() string {
	if e.clock.podman.Load() {
		return "podman"
	}
	return "docker"
}
