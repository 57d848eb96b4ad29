// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

// elsewhere is an index on another address of this machine; hits counts requests.
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

func TestInstall_StaysAtTheHostsOfItsIndexes(t *testing.T) {
	rows := map[string]func(other string) http.HandlerFunc{
		"a page that is redirected": func(other string) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other+r.URL.Path, http.StatusFound) }
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
	for name, handler := range rows {
		t.Run(name, func(t *testing.T) {
			tools(t, func(t *testing.T, i install.Installer) {
				p := newPlace(t)
				hello(t, p.wheels)
				other, hits := elsewhere(t, p.wheels)
				r := p.request(t, "greeting-words")
				r.Sources = index.Sources{URL: serve(t, handler(other))}
				e := fails(t, i, r, install.RefusedHost)
				test.StrContains(t, e.Words, "127.0.0.2")
				test.StrContains(t, e.Words, "allowed_hosts")
				test.EqOp(t, 0, hits.Load())
				if strings.HasSuffix(name, "another scheme") {
					return
				}
				if i.Name == "uv" && p.as == nil && strings.HasSuffix(name, "redirected") {
					t.Skip("uv forgets the proxy's credentials when it is redirected from http, and without root the proxy wants some")
				}
				p = newPlace(t)
				allowed := p.request(t, "greeting-words")
				allowed.Sources, allowed.AllowedHosts = r.Sources, []string{"127.0.0.*"}
				installs(t, i, allowed)
			})
		})
	}
}

func page(w http.ResponseWriter, prefix string) {
	w.Header().Set("Content-Type", "text/html")
	fmt.Fprintf(w, "<!DOCTYPE html><html><body><a href=\"%[1]s%[2]s\">%[2]s</a></body></html>", prefix, words.File())
}

// words is the package of many tests.
var words = wheeltest.Wheel{Name: "greeting-words", Version: "1.0"}

// deaf is an address that refuses connections, and that no other gets while the test runs.
func deaf(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	bound, err := unix.Getsockname(fd)
	must.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port)
}

func TestInstall_TellsAnIndexThatMayAnswerLater(t *testing.T) {
	testsupport.Long(t, "waits for timeouts")
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	half := words
	half.Files = map[string]string{"noise": noise(1 << 20)}
	whole := half.Bytes(t)
	cut := func(answer func(w http.ResponseWriter)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/files/") {
				answer(w)
				return
			}
			page(w, "/files/")
		}
	}
	for name, url := range map[string]string{
		"a refused connection": "http://" + deaf(t) + "/simple",
		"an unknown host":      "https://index.invalid/simple",
		"500 by http":          serve(t, status(500)),
		"429 by http":          serve(t, status(429)),
		"503 by https":         serveTLS(t, status(503)),
		"429 by https":         serveTLS(t, status(429)),
		"a file with fewer bytes than were announced": serve(t, cut(func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", fmt.Sprint(len(whole)))
			w.Write(whole[:len(whole)/2])
		})),
		"a file without its last chunk": serve(t, cut(func(w http.ResponseWriter) {
			w.Write(whole[:len(whole)/2])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		})),
		"a reset within a file by https": serveTLS(t, cut(func(w http.ResponseWriter) {
			c, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(whole), whole[:len(whole)/2])
			c.(*tls.Conn).NetConn().Write([]byte{23, 3, 3, 64, 0, 1, 2, 3}) // the beginning of a record
			c.(*tls.Conn).NetConn().Close()
		})),
	} {
		t.Run(name, func(t *testing.T) {
			tools(t, func(t *testing.T, i install.Installer) {
				r := newPlace(t).request(t, "greeting-words")
				r.Sources = index.Sources{URL: url}
				must.True(t, fails(t, i, r, install.Unreachable).Temporary())
			})
		})
	}
}

func TestInstall_TakesNothingFromAnotherIndexWhileTheFirstIsDown(t *testing.T) {
	p := newPlace(t)
	wheeltest.Wheel{Name: "report-tools", Version: "9.9"}.Write(t, p.wheels)
	r := p.request(t, "report-tools")
	down := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) })
	r.Sources = index.Sources{URL: wheeltest.Index(t, p.wheels).URL + "/simple", Extra: []string{down}}
	fails(t, uv(t), r, install.Unreachable) // pip goes on without it
}

// withPassword is an index of wheels for user someone with password s3cr3t/w. saw is called for each request.
func withPassword(t *testing.T, wheels string, saw func()) (url string) {
	handler := wheeltest.Handler(wheels)
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		saw()
		if _, password, _ := r.BasicAuth(); password != "s3cr3t/w" {
			w.Header().Set("WWW-Authenticate", `Basic realm="index"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Cache-Control", "max-age=3600")
		handler.ServeHTTP(w, r)
	})
}

func TestInstall_ShowsNoCredentials(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		hello(t, p.wheels)
		var mu sync.Mutex // guards argvs: uv asks for several things at once
		var argvs, heard []string
		open := withPassword(t, p.wheels, func() {
			out, _ := exec.Command("ps", "-eo", "args").Output()
			mu.Lock()
			defer mu.Unlock()
			argvs = append(argvs, string(out))
		})
		for _, wanted := range []string{"hello-world", "missing-thing"} {
			r := newPlace(t).request(t, wanted)
			r.Sources = index.Sources{URL: strings.Replace(open, "://", "://someone:s3cr3t%2Fw@", 1)}
			r.Progress = func(words string) { heard = append(heard, words) }
			_, err := i.Install(t.Context(), r)
			must.EqOp(t, wanted == "hello-world", err == nil, must.Sprint(lines(err)))
			heard = append(heard, fmt.Sprint(err), lines(err))
		}
		mu.Lock()
		defer mu.Unlock()
		must.SliceNotEmpty(t, argvs)
		for _, text := range append(argvs, heard...) {
			must.StrNotContains(t, text, "s3cr3t")
		}
	})
}

func TestInstall_ServesNoDownloadOfOtherCredentials(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		words.Write(t, p.wheels)
		simple := withPassword(t, p.wheels, func() {})
		file := strings.TrimSuffix(simple, "/simple") + "/files/" + words.File()
		with := func(url string) string { return strings.Replace(url, "http://", "http://user:s3cr3t%2Fw@", 1) }
		as := p.as
		for name, request := range map[string]func(url func(string) string) install.Request{
			"of an index": func(url func(string) string) install.Request {
				r := newPlace(t).request(t, "greeting-words")
				r.Sources = index.Sources{URL: url(simple)}
				return r
			},
			"by its URL": func(url func(string) string) install.Request {
				r := newPlace(t).request(t, "greeting-words @ "+url(file))
				r.Requirements.URLs = []string{url(file)}
				return r
			},
		} {
			t.Run(name, func(t *testing.T) {
				for _, url := range []func(string) string{with, func(url string) string { return url }} {
					r := request(url)
					own := place{dir: r.Work[:len(r.Work)-len("/work")], as: as}
					own.mkdirs(t) // one builder for all, since they share the downloads
					r.As, r.Downloads = as, p.downloads()
					if _, err := i.Install(t.Context(), r); err == nil != strings.Contains(url("http://"), "@") {
						t.Errorf("%s: %v\n%s", url("http://host"), err, lines(err))
					}
				}
			})
		}
	})
}

// Indexes sign the links to their files so.
func TestInstall_ShowsNoQueryOfAURL(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		var asked atomic.Bool
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/simple/") {
				w.Header().Set("Content-Type", "text/html")
				fmt.Fprintf(w, `<!DOCTYPE html><html><body><a href="/files/%[1]s?sig=SECRET">%[1]s</a></body></html>`, words.File())
				return
			}
			if strings.Contains(r.URL.RawQuery, "SECRET") {
				asked.Store(true)
			}
			http.Error(w, "no", http.StatusGone)
		})
		direct := strings.TrimSuffix(url, "/simple") + "/files/" + words.File() + "?sig=SECRET"
		for _, line := range []string{"greeting-words", "greeting-words @ " + direct} {
			r := newPlace(t).request(t, line)
			r.Sources = index.Sources{URL: url}
			if line != "greeting-words" {
				r.Requirements.URLs = []string{direct}
			}
			var heard []string
			r.Progress = func(words string) { heard = append(heard, words) }
			_, err := i.Install(t.Context(), r)
			must.Error(t, err)
			must.True(t, asked.Load())
			must.StrNotContains(t, fmt.Sprint(err, lines(err), heard), "SECRET")
		}
	})
}

func TestInstall_ReachesNoLinkLocalAddress(t *testing.T) {
	for _, url := range []string{"http://169.254.169.254/simple", "https://[::ffff:169.254.169.254]/simple"} {
		tools(t, func(t *testing.T, i install.Installer) {
			r := newPlace(t).request(t, "greeting-words")
			r.Sources = index.Sources{URL: url}
			fails(t, i, r, install.RefusedHost)
		})
	}
}

func TestInstall_CountsDownloadsByHost(t *testing.T) {
	const size = 1 << 20
	wheels := t.TempDir()
	wheeltest.Wheel{Name: "large", Version: "1.0", Files: map[string]string{"noise": noise(size)}}.Write(t, wheels)
	handler := wheeltest.Handler(wheels)
	for _, url := range []string{serve(t, handler.ServeHTTP), serveTLS(t, handler)} {
		tools(t, func(t *testing.T, i install.Installer) {
			r := newPlace(t).request(t, "large")
			r.Sources = index.Sources{URL: url}
			var mu sync.Mutex
			got := map[string]int{}
			r.Downloaded = func(host string, bytes int) {
				mu.Lock()
				defer mu.Unlock()
				got[host] += bytes
			}
			installs(t, i, r)
			mu.Lock()
			defer mu.Unlock()
			host := strings.TrimSuffix(url[strings.Index(url, "//")+2:], "/simple")
			must.MapLen(t, 1, got)
			must.Between(t, size, got[host], 2*size)
		})
	}
}

// tunnels is the agent's proxy: it connects to an index, whatever the host. It redirects what is not encrypted.
func tunnels(t *testing.T, to *httptest.Server) (used *atomic.Int32) {
	used = new(atomic.Int32)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := &http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}
		if _, password, _ := given.BasicAuth(); password != "agent" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		used.Add(1)
		if r.Method == http.MethodConnect {
			connect(w, to.Listener.Addr())
			return
		}
		http.Redirect(w, r, "https://"+r.URL.Hostname()+r.URL.Path, http.StatusMovedPermanently)
	}))
	t.Cleanup(proxy.Close)
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
		t.Setenv(name, strings.Replace(proxy.URL, "://", "://me:agent@", 1))
	}
	t.Setenv("NO_PROXY", "")
	return used
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

func TestInstall_GoesThroughTheAgentsProxy(t *testing.T) {
	wheels := t.TempDir()
	hello(t, wheels)
	used := tunnels(t, listenTLS(t, wheeltest.Handler(wheels), trusted.issue("example.com")))
	for url, cause := range map[string]install.Cause{
		"https://example.com/simple":     install.Unknown, // which is none
		"http://example.com/simple":      install.Unknown, // an index may redirect to its encrypted side
		"http://example.com:8080/simple": install.RefusedHost,
	} {
		tools(t, func(t *testing.T, i install.Installer) {
			before := used.Load()
			p := newPlace(t)
			r := p.request(t, "hello-world")
			r.Sources = index.Sources{URL: url}
			if cause != install.Unknown {
				fails(t, i, r, cause)
				return
			}
			check(t, p, i, r)
			must.Greater(t, before, used.Load())
		})
	}
	tunnels(t, listenTLS(t, wheeltest.Handler(wheels), newAuthority().issue("example.com")))
	tools(t, func(t *testing.T, i install.Installer) {
		r := newPlace(t).request(t, "hello-world")
		r.Sources = index.Sources{URL: "https://example.com/simple"}
		must.StrContains(t, fails(t, i, r, install.Unreachable).Error(), "certificate")
	})
}
