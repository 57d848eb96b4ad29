package install_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

// encryptedIndex is one of example.com, whose authority in the file certificates is trusted while the test runs.
func encryptedIndex(t *testing.T) (index *httptest.Server, certificates string) {
	t.Helper()
	p := newPlace(t)
	hello(t, p.wheels)
	authority, certificate := certified(t, "example.com")
	index = httptest.NewUnstartedServer(wheeltest.Handler(p.wheels))
	index.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	index.StartTLS()
	t.Cleanup(index.Close)
	certificates = filepath.Join(p.wheels, "ca.pem")
	if err := os.WriteFile(certificates, authority, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", certificates)
	t.Setenv("REQUESTS_CA_BUNDLE", certificates)
	return index, certificates
}

func TestAnIndexOverTLSIsReachedThroughTheAgentsProxy(t *testing.T) {
	index, certificates := encryptedIndex(t)
	var tunnels atomic.Int32
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := (&http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}).BasicAuth(); password != "agent" || r.Method != http.MethodConnect || r.Host != "example.com:443" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		tunnels.Add(1)
		connect(w, index.Listener.Addr())
	}))
	t.Cleanup(proxy.Close)
	t.Setenv("HTTPS_PROXY", strings.Replace(proxy.URL, "://", "://me:agent@", 1))
	t.Setenv("NO_PROXY", "")
	tools(t, func(t *testing.T, i install.Installer) {
		before := tunnels.Load()
		fresh := newPlace(t)
		r := fresh.request(t, "hello-world")
		r.Indexes = requirement.Indexes{URL: "https://example.com/simple"}
		check(t, fresh, i, r)
		if tunnels.Load() == before {
			t.Error("the agent's proxy was not used")
		}
	})
	if err := os.WriteFile(certificates, other(t), 0o644); err != nil {
		t.Fatal(err)
	}
	tools(t, func(t *testing.T, i install.Installer) {
		fresh := newPlace(t)
		r := fresh.request(t, "hello-world")
		r.Indexes = requirement.Indexes{URL: "https://example.com/simple"}
		_, err := i.Install(t.Context(), r)
		var e *install.Error
		if !errors.As(err, &e) || e.Cause != install.Unreachable || !strings.Contains(strings.ToLower(err.Error()), "certificate") {
			t.Errorf("with another authority: %v\n%s", err, lines(err))
		}
	})
}

// connect answers CONNECT.
func connect(w http.ResponseWriter, to net.Addr) {
	there, err := net.Dial("tcp", to.String())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer there.Close()
	here, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer here.Close()
	io.WriteString(here, "HTTP/1.1 200 OK\r\n\r\n")
	go func() {
		defer there.Close()
		io.Copy(there, here)
	}()
	io.Copy(here, there)
}

// certified makes an authority, as PEM, and a certificate of it.
func certified(t *testing.T, host string) ([]byte, tls.Certificate) {
	t.Helper()
	make := func(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			signer = key
		}
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		return der, key
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	rootDER, rootKey := make(root, root, nil)
	leaf, leafKey := make(&x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{host},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, KeyUsage: x509.KeyUsageDigitalSignature}, root, rootKey)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: rootDER}), tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: leafKey}
}

// other is an authority that knows nobody.
func other(t *testing.T) []byte {
	authority, _ := certified(t, "example.org")
	return authority
}
