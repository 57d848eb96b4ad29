// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agentapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// renew writes a new certificate and its key to the files of c. The client presents this certificate and also trusts it
// as its CA. With the returned configuration, the server does the same.
func renew(t *testing.T, c Config) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	must.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must.NoError(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	must.NoError(t, os.WriteFile(c.CAFile, text, 0o600))
	must.NoError(t, os.WriteFile(c.CertFile, text, 0o600))
	text = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})
	must.NoError(t, os.WriteFile(c.KeyFile, text, 0o600))
	trusted := x509.NewCertPool()
	trusted.AddCert(certificate)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: trusted, MinVersion: tls.VersionTLS12,
	}
}

// Short-lived certificates are replaced on disk, and the first one may appear only after the plugin has started.
func TestGet_UsesRenewedCertificates(t *testing.T) {
	var current atomic.Pointer[tls.Config]
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return current.Load(), nil },
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := t.TempDir()
	c := New(Config{
		Address: server.URL, CAFile: filepath.Join(dir, "ca.pem"),
		CertFile: filepath.Join(dir, "client.pem"), KeyFile: filepath.Join(dir, "client.key"),
	})
	get := func() error {
		_, err := c.Get(t.Context(), "/", nil, func(*json.Decoder) error { return nil })
		c.CloseIdleConnections()
		return err
	}
	must.ErrorContains(t, get(), "failed to read ca_file: open ")
	for range 2 {
		current.Store(renew(t, c.Config))
		must.NoError(t, get())
	}
	must.NoError(t, os.Remove(c.KeyFile))
	must.ErrorContains(t, get(), "failed to load cert_file and key_file: open ")
}

// net/http continues a TLS handshake after its request has ended, since a later request could use the connection. With
// a hung agent, such connections must still end.
func TestGet_ClosesTheConnectionIfATLSHandshakeHangs(t *testing.T) {
	agent, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer agent.Close()
	c := New(Config{Address: "https://" + agent.Addr().String()})
	var accepted []net.Conn
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := c.Get(ctx, "/", nil, nil)
		cancel()
		must.ErrorIs(t, err, context.DeadlineExceeded)
		conn, err := agent.Accept()
		must.NoError(t, err)
		defer conn.Close()
		accepted = append(accepted, conn)
	}
	for _, conn := range accepted {
		must.NoError(t, conn.SetDeadline(time.Now().Add(Limit+10*time.Second)))
		_, err := io.Copy(io.Discard, conn)
		must.NoError(t, err, must.Sprint("the client keeps the connection"))
	}
}
