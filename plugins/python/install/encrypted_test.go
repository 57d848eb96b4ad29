package install_test

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestAnIndexMaySendTheInstallerToItsOwnEncryptedSide(t *testing.T) {
	p := newPlace(t)
	hello(t, p.wheels)
	authority, certificate := certified(t, "example.com")
	encrypted := httptest.NewUnstartedServer(wheeltest.Handler(p.wheels))
	encrypted.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	encrypted.StartTLS()
	t.Cleanup(encrypted.Close)
	// the agent's proxy, so that hosts can have any name and port
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect {
			http.Redirect(w, r, "https://"+r.URL.Hostname()+r.URL.Path, http.StatusMovedPermanently)
			return
		}
		connect(w, encrypted.Listener.Addr())
	}))
	t.Cleanup(proxy.Close)
	certificates := filepath.Join(p.wheels, "ca.pem")
	if err := os.WriteFile(certificates, authority, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", certificates)
	t.Setenv("REQUESTS_CA_BUNDLE", certificates)
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("HTTPS_PROXY", proxy.URL)
	t.Setenv("NO_PROXY", "")
	for index, may := range map[string]bool{
		"http://example.com/simple":      true,
		"http://example.com:8080/simple": false, // which is another service
	} {
		tools(t, func(t *testing.T, i install.Installer) {
			p := newPlace(t)
			r := p.request(t, "hello-world")
			r.Indexes = requirement.Indexes{URL: index}
			_, err := i.Install(t.Context(), r)
			var e *install.Error
			if refused := errors.As(err, &e) && e.Cause == install.RefusedHost; may && err != nil || !may && !refused {
				t.Errorf("%s: the error is %v\n%s", index, err, lines(err))
			}
		})
	}
}
