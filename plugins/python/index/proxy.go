// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package index

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// Proxy is an installer's only connection to the network: an HTTP proxy that lets it reach only the hosts of an Access,
// and remembers failures.
type Proxy struct {
	URL string // with the credentials that the proxy requires

	access    *Access
	secret    string
	counted   func(host string, bytes int)
	upstream  func(*url.URL) (*url.URL, error) // the agent's own proxy
	transport *http.Transport
	plain     *httputil.ReverseProxy
	server    *http.Server
	closed    context.Context
	close     context.CancelFunc

	mu      sync.Mutex
	refused []string           // hosts, in the order of their first request
	failed  map[string]failure // by URL, until a later request succeeds
}

// failure is a missing or incomplete answer, or one about the server's state.
type failure struct {
	host string
	err  error
}

const timeout = 15 * time.Second

// maxRemembered bounds both lists of a Proxy: code of a package may request any number of URLs.
const maxRemembered = 100

// NewProxy serves on l until Close, which also closes l. Unless the installer is alone on the network of l, the proxy
// requires credentials. (uv drops them when it is redirected from http.) counted, which may be nil, is called with the
// number of bytes that came from a host, and with 0 for each request, by several goroutines.
func NewProxy(l net.Listener, access *Access, alone bool, counted func(host string, bytes int)) *Proxy {
	p := &Proxy{
		URL:      "http://" + l.Addr().String(),
		access:   access,
		counted:  counted,
		upstream: httpproxy.FromEnvironment().ProxyFunc(),
		failed:   map[string]failure{},
	}
	if counted == nil {
		p.counted = func(string, int) {}
	}
	if !alone {
		p.secret = rand.Text()
		p.URL = fmt.Sprintf("http://installer:%s@%s", p.secret, l.Addr())
		access.hide(p.secret)
	}
	p.closed, p.close = context.WithCancel(context.Background())
	p.transport = &http.Transport{
		Proxy:                 func(r *http.Request) (*url.URL, error) { return p.upstream(r.URL) },
		DialContext:           p.dialer().DialContext,
		TLSHandshakeTimeout:   timeout,
		ResponseHeaderTimeout: timeout,
		DisableCompression:    true, // hashes are of the bytes as they are
	}
	p.plain = &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.Out.Header.Del("Proxy-Authorization") },
		Transport:      p.transport,
		FlushInterval:  -1,
		ModifyResponse: p.answered,
		ErrorLog:       log.New(io.Discard, "", 0), // errors are remembered
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			p.remember(r.URL, err)
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: timeout, MaxHeaderBytes: 64 << 10}
	go func() { _ = p.server.Serve(l) }() // until Close
	return p
}

// Close ends all connections.
func (p *Proxy) Close() {
	p.close()
	_ = p.server.Close()
	p.transport.CloseIdleConnections()
}

// dialer refuses link-local addresses, for any host name: clouds serve the credentials of the machine there
// (169.254.169.254), and a job must not get them.
func (p *Proxy) dialer() *net.Dialer {
	return &net.Dialer{Timeout: timeout, Control: func(_, to string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(to)
		if err != nil || !at.Addr().Unmap().IsLinkLocalUnicast() || p.access.allowsByPattern(at.Addr().String(), to) {
			return nil
		}
		p.refuse(to)
		return errors.New("a link-local address, which the operator has not allowed")
	}}
}

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	target := r.URL
	if r.Method == http.MethodConnect {
		target = &url.URL{Scheme: "https", Host: r.Host}
	} else if target.Scheme != "http" {
		http.Error(w, "only http and CONNECT", http.StatusForbidden)
		return
	}
	if !p.access.allows(target) {
		p.refuse(address(target))
		http.Error(w, "not among the hosts that this installer may reach", http.StatusForbidden)
		return
	}
	given := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
	_, password, _ := given.BasicAuth()
	if p.secret != "" && subtle.ConstantTimeCompare([]byte(password), []byte(p.secret)) != 1 {
		w.Header().Set("Proxy-Authenticate", `Basic realm="installer"`)
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	p.counted(short(address(target)), 0)
	if r.Method == http.MethodConnect {
		p.tunnel(w, r, target)
		return
	}
	p.plain.ServeHTTP(w, r)
}

// tunnel answers CONNECT (RFC 9110, 9.3.6).
func (p *Proxy) tunnel(w http.ResponseWriter, r *http.Request, target *url.URL) {
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	there, err := p.dial(ctx, target)
	p.remember(target, err)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer there.Close()
	defer context.AfterFunc(p.closed, func() { _ = there.Close() })()
	here, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer here.Close()
	defer context.AfterFunc(p.closed, func() { _ = here.Close() })()
	if _, err := io.WriteString(here, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	done := make(chan struct{})
	var over atomic.Bool // the installer has closed the tunnel
	go func() {
		defer close(done)
		_, _ = io.Copy(there, buffered)
		over.Store(true)
		_ = there.(interface{ CloseWrite() error }).CloseWrite()
	}()
	answers := &tlsReader{Reader: there, counted: func(n int) { p.counted(short(address(target)), n) }}
	_, _ = io.Copy(here, answers)
	if err := answers.broken(); err != nil && !over.Load() {
		p.remember(target, err)
	}
	_ = here.Close() // which ends the other direction
	<-done
}

// dial connects to the target, through the agent's own proxy if there is one.
func (p *Proxy) dial(ctx context.Context, target *url.URL) (net.Conn, error) {
	dialer := p.dialer()
	proxy, err := p.upstream(target)
	if err != nil || proxy == nil {
		return dialer.DialContext(ctx, "tcp", address(target))
	}
	var conn net.Conn
	switch proxy.Scheme {
	case "http":
		conn, err = dialer.DialContext(ctx, "tcp", address(proxy))
	case "https":
		conn, err = (&tls.Dialer{NetDialer: dialer}).DialContext(ctx, "tcp", address(proxy))
	default:
		return nil, fmt.Errorf("the agent's proxy is a %s proxy: only http and https are supported", proxy.Scheme)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to reach the agent's proxy: %w", err)
	}
	connect := &http.Request{
		Method: http.MethodConnect, URL: &url.URL{Opaque: address(target)}, Host: address(target), Header: http.Header{},
	}
	if proxy.User != nil {
		password, _ := proxy.User.Password()
		login := base64.StdEncoding.EncodeToString([]byte(proxy.User.Username() + ":" + password))
		connect.Header.Set("Proxy-Authorization", "Basic "+login)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	err = connect.Write(conn)
	if err == nil {
		var answer *http.Response
		// The target sends nothing before the client's first bytes (TLS), so nothing is lost in this buffer.
		answer, err = http.ReadResponse(bufio.NewReader(conn), connect)
		if err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("the agent's proxy answered %s", answer.Status)
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// answered records the outcome of an answer that is not encrypted.
func (p *Proxy) answered(r *http.Response) error {
	of := r.Request.URL
	err := outcome(r)
	p.remember(of, err)
	if err == nil {
		r.Body = &watchedBody{
			ReadCloser: r.Body,
			counted:    func(n int) { p.counted(short(address(of)), n) },
			broke:      func(err error) { p.remember(of, fmt.Errorf("its answer ended early: %w", err)) },
		}
	}
	return nil
}

// outcome returns an error if the status is about the server's state, and not about the URL.
func outcome(r *http.Response) error {
	switch code := r.StatusCode; {
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500:
		return fmt.Errorf("it answered %s", r.Status)
	}
	return nil
}

// ask requests each index of s with https once, without credentials.
func (p *Proxy) ask(ctx context.Context, s Sources) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for _, index := range append([]string{s.URL}, s.Extra...) {
		_, bare := split(index)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, bare+"/", nil)
		if err != nil || r.URL.Scheme != "https" {
			continue
		}
		answer, err := p.transport.RoundTrip(r)
		if err == nil {
			err = outcome(answer)
			_ = answer.Body.Close()
		}
		p.remember(r.URL, err)
	}
}

// watchedBody reports a body that ends early: pip takes it for the whole.
type watchedBody struct {
	io.ReadCloser
	counted func(bytes int)
	broke   func(error)
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.counted(n)
	if err != nil && err != io.EOF {
		b.broke(err)
	}
	return n, err
}

// remember records the outcome of a request. The last request of each URL counts.
func (p *Proxy) remember(of *url.URL, err error) {
	if errors.Is(err, context.Canceled) {
		return // the installer did that
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.failed, of.String()); err != nil && len(p.failed) < maxRemembered {
		p.failed[of.String()] = failure{short(address(of)), err}
	}
}

func (p *Proxy) refuse(address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if host := short(address); len(p.refused) < maxRemembered && !slices.Contains(p.refused, host) {
		p.refused = append(p.refused, host)
	}
}

// Refused returns the hosts that the installer requested and must not reach.
func (p *Proxy) Refused() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.refused)
}

// Failed returns a host that did not answer, or not completely, and the reason; "" if none is known. Answers over TLS
// are encrypted: if nothing else failed, the proxy requests the indexes of s itself.
func (p *Proxy) Failed(ctx context.Context, s Sources) (host string, err error) {
	if host, err = p.firstFailed(); host == "" {
		p.ask(ctx, s)
		host, err = p.firstFailed()
	}
	return host, err
}

func (p *Proxy) firstFailed() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := failure{}
	for _, f := range p.failed {
		if first.host == "" || f.host < first.host {
			first = f
		}
	}
	return first.host, first.err
}
