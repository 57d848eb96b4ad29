package install

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

// egress is the installer's only way to the network: an HTTP proxy that lets through to
// the hosts of a request alone, and remembers what became of it.
type egress struct {
	URL string // with the credentials it wants

	allowed  hosts
	server   *http.Server
	secret   string
	upstream func(*url.URL) (*url.URL, error) // the agent's own proxy
	heard    func(host string, bytes int)     // Request.Downloaded
	plain    *httputil.ReverseProxy
	ended    chan struct{}

	mu      sync.Mutex
	refused []string           // host:port, in the order of the first time
	failed  map[string]failure // by URL, unless it answered later
	hungUp  []string           // host:port, where a tunnel's other end closed it, unless it was idle
	tunnels map[net.Conn]bool
	closed  bool // a tunnel that comes now is too late
}

// failure is what became of a URL, or of the tunnel to a host.
type failure struct {
	address string // host:port
	err     error
}

const dialTimeout = 15 * time.Second

// mostRemembered bounds each of the lists above: a package's code may ask for any number of URLs.
const mostRemembered = 100

// newEgress serves on l, which it closes, until Close. Where others could reach l too it asks for credentials:
// not otherwise, since uv forgets them when it is redirected from http.
func newEgress(l net.Listener, allowed hosts, alone bool, heard func(string, int)) *egress {
	e := &egress{
		allowed:  allowed,
		upstream: httpproxy.FromEnvironment().ProxyFunc(),
		heard:    heard,
		ended:    make(chan struct{}),
		failed:   map[string]failure{},
		tunnels:  map[net.Conn]bool{},
	}
	if heard == nil {
		e.heard = func(string, int) {}
	}
	e.URL = "http://" + l.Addr().String()
	if !alone {
		e.secret = rand.Text()
		e.URL = fmt.Sprintf("http://installer:%s@%s", e.secret, l.Addr())
	}
	transport := &http.Transport{
		Proxy:                 func(r *http.Request) (*url.URL, error) { return e.upstream(r.URL) },
		DialContext:           e.dialer().DialContext,
		ResponseHeaderTimeout: dialTimeout,
		DisableCompression:    true, // bytes as they are: hashes are of them
	}
	e.plain = &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.Out.Header.Del("Proxy-Authorization") },
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: e.answered,
		ErrorLog:       log.New(io.Discard, "", 0), // what matters is remembered
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			e.remember(r.URL, err)
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	e.server = &http.Server{Handler: e, ReadHeaderTimeout: dialTimeout, MaxHeaderBytes: 64 << 10}
	go func() {
		defer close(e.ended)
		_ = e.server.Serve(l) // it ends with Close
		transport.CloseIdleConnections()
	}()
	return e
}

// dialer connects to no link-local address, whatever the host is called: that is where clouds
// have the machine's own credentials (169.254.169.254), which are not a job's to fetch.
func (e *egress) dialer() *net.Dialer {
	return &net.Dialer{Timeout: dialTimeout, Control: func(_, to string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(to)
		if err != nil || !at.Addr().Unmap().IsLinkLocalUnicast() || e.allowed.byOperator(at.Addr().String(), to) {
			return nil
		}
		e.refuse(to)
		return errors.New("an address of the machine's own link, which the operator has not allowed")
	}}
}

// Close ends all connections.
func (e *egress) Close() {
	_ = e.server.Close()
	e.mu.Lock()
	e.closed = true
	for c := range e.tunnels {
		_ = c.Close()
	}
	e.mu.Unlock()
	<-e.ended
}

func (e *egress) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	target := r.URL
	if r.Method == http.MethodConnect {
		target = &url.URL{Scheme: "https", Host: r.Host}
	} else if target.Scheme != "http" {
		http.Error(w, "only http and CONNECT", http.StatusForbidden)
		return
	}
	if !e.allowed.allow(target) {
		e.refuse(address(target))
		http.Error(w, "not among the hosts that this installer may reach", http.StatusForbidden)
		return
	}
	_, password, _ := (&http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}).BasicAuth()
	if e.secret != "" && subtle.ConstantTimeCompare([]byte(password), []byte(e.secret)) != 1 {
		w.Header().Set("Proxy-Authenticate", `Basic realm="installer"`)
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	e.heard(short(address(target)), 0)
	if r.Method == http.MethodConnect {
		e.tunnel(w, r, target)
		return
	}
	e.plain.ServeHTTP(w, r)
}

// tunnel answers CONNECT (RFC 9110, 9.3.6).
func (e *egress) tunnel(w http.ResponseWriter, r *http.Request, target *url.URL) {
	ctx, cancel := context.WithTimeout(r.Context(), dialTimeout)
	defer cancel()
	there, err := e.dial(ctx, target)
	if err != nil {
		e.remember(target, err)
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	e.remember(target, nil)
	defer e.track(there)()
	here, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer e.track(here)()
	if _, err := io.WriteString(here, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	done := make(chan struct{})
	var over atomic.Bool // the installer has ended it
	go func() {
		defer close(done)
		_, _ = io.Copy(there, buffered)
		over.Store(true)
		_ = there.(interface{ CloseWrite() error }).CloseWrite()
	}()
	answers := &tlsReader{Reader: there, heard: func(n int) { e.heard(short(address(target)), n) }}
	_, _ = io.Copy(here, answers)
	if !over.Load() {
		e.closedByOther(target, answers)
	}
	_ = here.Close() // which ends the other direction
	<-done
}

// idle is longer than the installers wait for a server that sends nothing (--timeout, UV_HTTP_TIMEOUT): a connection
// that is closed after that was not in use.
const idle = 20 * time.Second

// closedByOther tells of a tunnel that the other end closed, which is no failure in itself: what was not whole is in
// the tunnel, and encrypted.
func (e *egress) closedByOther(target *url.URL, answers *tlsReader) {
	if err := answers.broken(); err != nil {
		e.remember(target, err)
	} else if answers.err != nil && answers.waited < idle {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.hungUp = remembered(e.hungUp, address(target))
	}
}

// dial connects to the target, through the agent's own proxy where it has one.
func (e *egress) dial(ctx context.Context, target *url.URL) (net.Conn, error) {
	dialer := e.dialer()
	proxy, err := e.upstream(target)
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
		return nil, fmt.Errorf("the agent's proxy is a %s proxy, of which only http and https are known", proxy.Scheme)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to reach the agent's proxy: %w", err)
	}
	connect := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address(target)}, Host: address(target), Header: http.Header{}}
	if proxy.User != nil {
		password, _ := proxy.User.Password()
		connect.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(proxy.User.Username()+":"+password)))
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	err = connect.Write(conn)
	if err == nil {
		var answer *http.Response
		// Nothing comes from the target before the client's first bytes (TLS), so nothing is lost in this buffer.
		if answer, err = http.ReadResponse(bufio.NewReader(conn), connect); err == nil && answer.StatusCode != http.StatusOK {
			err = fmt.Errorf("the agent's proxy answered %s", answer.Status)
		}
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// track has Close close c; the function that it returns does so before.
func (e *egress) track(c net.Conn) func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tunnels[c] = true
	if e.closed {
		_ = c.Close()
	}
	return func() {
		_ = c.Close()
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.tunnels, c)
	}
}

func (e *egress) answered(r *http.Response) error {
	if mayBeOtherwiseLater(r.StatusCode) {
		e.remember(r.Request.URL, fmt.Errorf("it answered %s", r.Status))
	} else {
		e.remember(r.Request.URL, nil)
		r.Body = &watchedBody{
			ReadCloser: r.Body,
			heard:      func(n int) { e.heard(short(address(r.Request.URL)), n) },
			broke:      func(err error) { e.remember(r.Request.URL, fmt.Errorf("its answer ended early: %w", err)) },
		}
	}
	return nil
}

// mayBeOtherwiseLater tells an answer that is about the server's state, and not about what was asked for.
func mayBeOtherwiseLater(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500
}

// watchedBody tells of an answer that breaks off: pip takes what it got for the whole.
type watchedBody struct {
	io.ReadCloser
	heard func(bytes int)
	broke func(error)
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.heard(n)
	if err != nil && err != io.EOF {
		b.broke(err)
	}
	return n, err
}

// remember is told of each answer, of which the last one of a URL counts: that another URL of the host was
// answered does not make a file whole.
func (e *egress) remember(of *url.URL, err error) {
	if errors.Is(err, context.Canceled) {
		return // the installer hung up
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if delete(e.failed, of.String()); err != nil && len(e.failed) < mostRemembered {
		e.failed[of.String()] = failure{address(of), err}
	}
}

func (e *egress) refuse(address string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused = remembered(e.refused, address)
}

func remembered(list []string, address string) []string {
	if len(list) < mostRemembered && !slices.Contains(list, address) {
		list = append(list, address)
	}
	return list
}
