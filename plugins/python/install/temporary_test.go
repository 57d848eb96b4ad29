package install_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

func TestAnIndexThatHasTooMuchToDoMayAnswerLater(t *testing.T) {
	authority, certificate := certified(t, "localhost")
	for _, test := range []struct {
		status       int
		scheme, what string
	}{
		{429, "http", "page"}, {429, "https", "page"}, {429, "https", "file"}, {408, "https", "page"}, {425, "https", "file"},
		{502, "https", "page"}, {520, "https", "page"}, {521, "https", "page"}, {521, "https", "file"},
	} {
		t.Run(fmt.Sprintf("%d of a %s by %s", test.status, test.what, test.scheme), func(t *testing.T) {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if test.what == "file" && !strings.HasPrefix(r.URL.Path, "/files/") {
					page(w, "/files/")
					return
				}
				w.WriteHeader(test.status)
			}))
			if test.scheme == "http" {
				s.Start()
			} else {
				s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
				s.StartTLS()
			}
			t.Cleanup(s.Close)
			tools(t, func(t *testing.T, i install.Installer) {
				p := newPlace(t)
				certificates := filepath.Join(p.wheels, "ca.pem")
				if err := os.WriteFile(certificates, authority, 0o644); err != nil {
					t.Fatal(err)
				}
				t.Setenv("SSL_CERT_FILE", certificates)
				t.Setenv("REQUESTS_CA_BUNDLE", certificates)
				r := p.request(t, "greeting-words")
				r.Indexes = requirement.Indexes{URL: strings.Replace(s.URL, "127.0.0.1", "localhost", 1) + "/simple"}
				_, err := i.Install(t.Context(), r)
				var e *install.Error
				if !errors.As(err, &e) || e.Cause != install.Unreachable || !e.Temporary() {
					t.Errorf("the error is %v\n%s", err, lines(err))
				}
				t.Log(err)
			})
		})
	}
}
