package install_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

// elsewhere is an index on another address of this machine; hits counts who came.
func elsewhere(t *testing.T, dir string) (url string, hits *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skipf("no second loopback address: %v", err)
	}
	hits = new(atomic.Int32)
	handler := wheeltest.Handler(dir)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		handler.ServeHTTP(w, r)
	}))
	s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return s.URL, hits
}

// serve is an index with a handler of the test's own.
func serve(t *testing.T, h http.HandlerFunc) string {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL + "/simple"
}

func TestAnIndexThatSendsTheInstallerElsewhereIsRefused(t *testing.T) {
	tests := map[string]func(other string) http.HandlerFunc{
		"a page that is redirected": func(other string) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other+r.URL.Path, http.StatusFound) }
		},
		"a file that is redirected": func(other string) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, "/files/") {
					http.Redirect(w, r, other+r.URL.Path, http.StatusTemporaryRedirect)
					return
				}
				page(w, "/files/")
			}
		},
		"a link": func(other string) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) { page(w, other+"/files/") }
		},
		"a link with another scheme": func(other string) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				page(w, strings.Replace(other, "http:", "https:", 1)+"/files/")
			}
		},
	}
	for name, index := range tests {
		t.Run(name, func(t *testing.T) {
			tools(t, func(t *testing.T, i install.Installer) {
				p := newPlace(t)
				hello(t, p.wheels)
				other, hits := elsewhere(t, p.wheels)
				r := p.request(t, "greeting-words")
				r.Indexes = requirement.Indexes{URL: serve(t, index(other))}
				_, err := i.Install(t.Context(), r)
				var e *install.Error
				if !errors.As(err, &e) || e.Cause != install.RefusedHost || !strings.Contains(e.Words, "127.0.0.2") || !strings.Contains(e.Words, "allowed_hosts") {
					t.Errorf("the error is %v\n%s", err, lines(err))
				}
				if n := hits.Load(); n > 0 {
					t.Errorf("the other host was asked %d times", n)
				}
				if strings.HasSuffix(name, "another scheme") {
					return
				}
				if i.Name == "uv" && builder() == nil && strings.HasSuffix(name, "redirected") {
					t.Skip("uv forgets the proxy's credentials when it is redirected from http, and without root the proxy wants some")
				}
				p = newPlace(t)
				allowed := p.request(t, "greeting-words")
				allowed.Indexes, allowed.AllowedHosts = r.Indexes, []string{"127.0.0.*"}
				if _, err := i.Install(t.Context(), allowed); err != nil {
					t.Errorf("with the host allowed: %v\n%s", err, lines(err))
				}
			})
		})
	}
}

func page(w http.ResponseWriter, prefix string) {
	w.Header().Set("Content-Type", "text/html")
	fmt.Fprintf(w, "<!DOCTYPE html><html><body><a href=\"%sgreeting_words-1.0-py3-none-any.whl\">greeting_words-1.0-py3-none-any.whl</a></body></html>", prefix)
}

// deaf is an address that refuses connections, and that no other gets while the test runs.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port)
}

func TestAnIndexThatDoesNotAnswerMayLater(t *testing.T) {
	tests := map[string]string{
		"refused connection": "http://" + deaf(t) + "/simple",
		"unknown host":       "http://index.invalid/simple",
		"unknown https host": "https://index.invalid/simple",
		"an error": serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "no", http.StatusInternalServerError)
		}),
		"a dropped connection": serve(t, func(w http.ResponseWriter, r *http.Request) {
			if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
				c.Close()
			}
		}),
		"a file that breaks off": serve(t, func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasPrefix(r.URL.Path, "/files/") {
				page(w, "/files/")
				return
			}
			w.Header().Set("Content-Length", "100000") // which begins as a wheel does: it is not known for something else
			w.Write(wheeltest.Wheel{Name: "greeting-words", Version: "1.0"}.Bytes(t)[:100])
		}),
	}
	for name, index := range tests {
		t.Run(name, func(t *testing.T) {
			tools(t, func(t *testing.T, i install.Installer) {
				p := newPlace(t)
				r := p.request(t, "greeting-words")
				r.Indexes = requirement.Indexes{URL: index}
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

func TestCredentialsOfAnIndexAreNowhereToBeSeen(t *testing.T) {
	const password = "s3cr3t%2Fw"
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		hello(t, p.wheels)
		handler := wheeltest.Handler(p.wheels)
		var mu sync.Mutex // guards argvs: uv asks for several things at once
		var argvs, heard []string
		open := serve(t, func(w http.ResponseWriter, r *http.Request) {
			out, _ := exec.Command("ps", "-eo", "args").Output()
			mu.Lock()
			argvs = append(argvs, string(out))
			mu.Unlock()
			if _, given, _ := r.BasicAuth(); given != "s3cr3t/w" {
				w.Header().Set("WWW-Authenticate", `Basic realm="index"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			handler.ServeHTTP(w, r)
		})
		for _, wanted := range []string{"hello-world", "missing-thing"} {
			p := newPlace(t)
			r := p.request(t, wanted)
			r.Indexes = requirement.Indexes{URL: strings.Replace(open, "://", "://someone:"+password+"@", 1)}
			r.Progress = func(words string) { heard = append(heard, words) }
			_, err := i.Install(t.Context(), r)
			heard = append(heard, fmt.Sprint(err), lines(err))
			if wanted == "hello-world" && err != nil {
				t.Errorf("%v\n%s", err, lines(err))
			}
		}
		mu.Lock()
		seen := append(argvs, heard...)
		mu.Unlock()
		for _, text := range seen {
			if strings.Contains(text, "s3cr3t") {
				t.Errorf("the password is in %s", text)
			}
		}
		if len(argvs) == 0 {
			t.Error("the index was not asked")
		}
		p = newPlace(t)
		r := p.request(t, "hello-world")
		r.Indexes = requirement.Indexes{URL: strings.Replace(open, "://", "://someone:wrong-one@", 1)}
		_, err := i.Install(t.Context(), r)
		var e *install.Error
		if !errors.As(err, &e) || e.Temporary() || !e.Refused || !strings.Contains(err.Error(), "401") {
			t.Errorf("with a wrong password: %v\n%s", err, lines(err))
		}
	})
}

func TestNoInstallerReachesTheMachinesOwnCredentials(t *testing.T) {
	for _, index := range []string{"http://169.254.169.254/simple", "https://169.254.169.254/simple", "http://[::ffff:169.254.169.254]/simple"} {
		tools(t, func(t *testing.T, i install.Installer) {
			p := newPlace(t)
			r := p.request(t, "greeting-words")
			r.Indexes = requirement.Indexes{URL: index}
			_, err := i.Install(t.Context(), r)
			var e *install.Error
			if !errors.As(err, &e) || e.Cause != install.RefusedHost || e.Temporary() {
				t.Errorf("%s: the error is %v\n%s", index, err, lines(err))
			}
		})
	}
}

func TestWhatIsDownloadedIsCountedByItsHost(t *testing.T) {
	authority, certificate := certified(t, "localhost")
	for _, scheme := range []string{"http", "https"} {
		tools(t, func(t *testing.T, i install.Installer) {
			p := newPlace(t)
			const size = 1 << 20
			wheeltest.Wheel{Name: "large", Version: "1.0", Files: map[string]string{"noise": noise(size)}}.Write(t, p.wheels)
			s := httptest.NewUnstartedServer(wheeltest.Handler(p.wheels))
			if scheme == "https" {
				s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
				s.StartTLS()
				certificates := filepath.Join(p.wheels, "ca.pem")
				if err := os.WriteFile(certificates, authority, 0o644); err != nil {
					t.Fatal(err)
				}
				t.Setenv("SSL_CERT_FILE", certificates)
				t.Setenv("REQUESTS_CA_BUNDLE", certificates)
			} else {
				s.Start()
			}
			defer s.Close()
			r := p.request(t, "large")
			url := strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
			r.Indexes = requirement.Indexes{URL: url + "/simple"}
			var mu sync.Mutex
			got := map[string]int{}
			r.Downloaded = func(host string, bytes int) {
				mu.Lock()
				defer mu.Unlock()
				got[host] += bytes
			}
			must(t, i, r)
			mu.Lock()
			defer mu.Unlock()
			if n := got[strings.TrimPrefix(url, scheme+"://")]; len(got) != 1 || n < size || n > 2*size {
				t.Errorf("by %s: %v", scheme, got)
			}
		})
	}
}
