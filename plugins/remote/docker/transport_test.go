// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/docker"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

func unreachable(err error) bool { return errors.Is(err, endpoint.ErrUnreachable) }

// A certificate that is renewed is used from the next connection on.
func TestEndpoint_ReadsItsCertificateAgain(t *testing.T) {
	cert, key, pair := certificate(t)
	next, nextKey, nextPair := certificate(t)
	shown := make(chan []byte, 10)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/_ping") {
			shown <- r.TLS.PeerCertificates[0].Raw
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}")
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	copyFile := func(from, to string) {
		text, err := os.ReadFile(from)
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(to, text, 0o600))
	}
	copyFile(cert, ca)
	o := docker.Options{
		Host:   strings.Replace(server.URL, "https://", "tcp://", 1),
		CAFile: ca, CertFile: cert, KeyFile: key, Lease: leaseTime,
	}
	c, err := docker.New(o)
	must.NoError(t, err)
	defer c.Close()
	_, err = c.Probe(t.Context())
	must.NoError(t, err)
	must.Eq(t, pair.Certificate[0], <-shown)
	copyFile(next, cert)
	copyFile(nextKey, key)
	server.CloseClientConnections()
	_, err = c.Probe(t.Context())
	must.NoError(t, err)
	must.Eq(t, nextPair.Certificate[0], <-shown)
	o.CAFile = key
	_, err = docker.New(o)
	must.ErrorContains(t, err, "failed to set up TLS for the engine: ")
	must.ErrorContains(t, err, "has no certificate in PEM")
}

// certificate writes a certificate for this machine, signed by itself, and its key.
func certificate(t *testing.T) (cert, key string, pair tls.Certificate) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "engine"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	must.NoError(t, err)
	keyDER, err := x509.MarshalECPrivateKey(k)
	must.NoError(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	must.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	pair, err = tls.LoadX509KeyPair(cert, key)
	must.NoError(t, err)
	return cert, key, pair
}

// lines are connections to an engine, as through SSH.
type lines struct {
	path string
	mu   sync.Mutex
	open []net.Conn
}

func (l *lines) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if network != "unix" || addr != "/on/the/host" {
		return nil, errors.New("dialed " + network + " " + addr)
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, l.path)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, c)
	return c, err
}

func (l *lines) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.open {
		c.Close()
	}
	l.open = nil
}

// proxy forwards requests to an engine.
func (e *engine) proxy() http.Handler {
	path := strings.TrimPrefix(e.host, "unix://")
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "docker" },
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}},
		FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
	}
}

// The engine is reached by TLS, and by connections that somebody else makes. When they are cut, the next calls make
// others.
func TestEndpoint_IsReached(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		path := strings.TrimPrefix(e.host, "unix://")
		cert, key, pair := certificate(t)
		_, otherKey, _ := certificate(t)
		pool := x509.NewCertPool()
		text, err := os.ReadFile(cert)
		must.NoError(t, err)
		must.True(t, pool.AppendCertsFromPEM(text))
		proxy := httptest.NewUnstartedServer(e.proxy())
		proxy.TLS = &tls.Config{
			Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		}
		proxy.StartTLS()
		defer proxy.Close()
		l := &lines{path: path}
		tcp := strings.Replace(proxy.URL, "https://", "tcp://", 1)
		for name, o := range map[string]docker.Options{
			"tls":  {Host: tcp, CAFile: cert, CertFile: cert, KeyFile: key},
			"dial": {Host: "unix:///on/the/host", Dial: l.dial},
		} {
			t.Run(name, func(t *testing.T) {
				o.Lease = leaseTime
				c, err := docker.New(o)
				must.NoError(t, err)
				defer c.Close()
				_, err = c.Probe(t.Context())
				must.NoError(t, err)
				got := start(t, c, object(t, e), shell("echo one; trap 'echo two; exit' USR1; while :; do sleep 0.05; done"))
				logs, err := c.Logs(t.Context(), got.Name, "stdout", endpoint.Place{}, 0)
				must.NoError(t, err)
				defer logs.Close()
				chunk, err := logs.Next()
				must.NoError(t, err)
				must.Eq(t, "one\n", string(chunk.Data))
				x, err := c.Exec(t.Context(), got.Ref(), &endpoint.ExecOptions{Command: []string{"sh", "-c", "exit 4"}})
				must.NoError(t, err)
				must.Eq(t, 4, x.Code)
				end := chunk.End
				l.cut()
				must.NoError(t, c.Signal(t.Context(), got.Ref(), "SIGUSR1"))
				if name == "dial" {
					_, err = logs.Next()
					must.True(t, unreachable(err), must.Sprint(err))
				}
				must.Eq(t, "two\n", output(t, c, got.Name, "stdout", end, 0))
				_, err = c.Watch(t.Context(), got.Ref())
				must.NoError(t, err)
				must.NoError(t, c.Remove(t.Context(), got.Ref()))
			})
		}
		for name, o := range map[string]docker.Options{
			"another certificate": {Host: tcp, CAFile: otherKey, CertFile: cert, KeyFile: key},
			"no certificate":      {Host: tcp, CAFile: cert},
			"nobody listens":      {Host: "unix:///no/such/socket"},
		} {
			t.Run(name, func(t *testing.T) {
				c, err := docker.New(o)
				if err == nil {
					defer c.Close()
					_, err = c.Probe(t.Context())
					must.True(t, unreachable(err), must.Sprint(err))
				}
				must.Error(t, err)
			})
		}
	})
}
