package install_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

// cuts are the ways in which a server sends half of a file.
var cuts = map[string]func(w http.ResponseWriter, half []byte, whole int){
	"fewer bytes than were announced": func(w http.ResponseWriter, half []byte, whole int) {
		w.Header().Set("Content-Length", fmt.Sprint(whole))
		w.Write(half)
	},
	"no last chunk": func(w http.ResponseWriter, half []byte, _ int) {
		w.Write(half)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	},
	"a reset": func(w http.ResponseWriter, half []byte, whole int) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", whole, half)
		if over, ok := c.(*tls.Conn); ok {
			c = over.NetConn()
		}
		c.(*net.TCPConn).SetLinger(0)
		c.Close()
	},
}

func TestAFileThatIsCutOffIsTriedAgain(t *testing.T) {
	authority, certificate := certified(t, "localhost")
	certificates := filepath.Join(newPlace(t).wheels, "ca.pem")
	if err := os.WriteFile(certificates, authority, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", certificates)
	t.Setenv("REQUESTS_CA_BUNDLE", certificates)
	wheel := wheeltest.Wheel{Name: "greeting-words", Version: "1.0", Files: map[string]string{"noise": noise(1 << 20)}}
	content := wheel.Bytes(t)
	for name, cut := range cuts {
		for _, locked := range []bool{false, true} {
			for _, scheme := range []string{"http", "https"} {
				t.Run(fmt.Sprintf("%s by %s, locked %t", name, scheme, locked), func(t *testing.T) {
					t.Parallel()
					tools(t, func(t *testing.T, i install.Installer) {
						p := newPlace(t)
						sum := wheel.Write(t, p.wheels)
						handler := wheeltest.Handler(p.wheels) // whose pages have hashes
						s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							if r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/files/") {
								cut(w, content[:len(content)/2], len(content))
								return
							}
							handler.ServeHTTP(w, r)
						}))
						if scheme == "https" {
							s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
							s.StartTLS()
						} else {
							s.Start()
						}
						defer s.Close()
						r := p.request(t, "greeting-words")
						if locked {
							r.Requirements = &requirement.Set{Lines: []string{"greeting-words==1.0 --hash=sha256:" + sum}, Hashed: true, Complete: true}
						}
						r.Indexes = requirement.Indexes{URL: strings.Replace(s.URL, "127.0.0.1", "localhost", 1) + "/simple"}
						_, err := i.Install(t.Context(), r)
						t.Log(err)
						var e *install.Error
						if !errors.As(err, &e) || e.Cause != install.Unreachable || !e.Temporary() {
							t.Errorf("the error is %v\n%s", err, lines(err))
						}
					})
				})
			}
		}
	}
}
