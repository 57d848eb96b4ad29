// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
	"github.com/outrider-dev/outrider/internal/core/wheel/wheeltest"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// deaf returns an address that refuses connections: until the test ends, a socket is bound to it, but does not listen.
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

func TestInstall_FailureOfAnIndexIsTemporary(t *testing.T) {
	testsupport.Long(t, "waits for uv's retries")
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for name, url := range map[string]string{
		"a refused connection": "http://" + deaf(t) + "/simple",
		"an unknown host":      "https://index.invalid/simple",
		"500 by http":          serve(t, status(500)),
		"429 by http":          serve(t, status(429)),
		"503 by http":          serve(t, status(503)),
	} {
		t.Run(name, func(t *testing.T) {
			i := uv(t)
			r := newPlace(t).request(t, "greeting-words")
			r.Sources = requirement.Sources{URL: url}
			fails(t, i, r, true)
		})
	}
}

func TestInstall_TruncatedDownloadIsTemporary(t *testing.T) {
	p := newPlace(t)
	wheeltest.Wheel{
		Name: "large", Version: "1.0", Files: map[string]string{"large.bin": noise(1 << 20)},
	}.Write(t, p.wheels)
	handler := wheel.Index(p.wheels)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/files/") || r.Method == http.MethodHead {
			handler.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Length", "1000000")
		_, _ = w.Write(make([]byte, 1000))
		panic(http.ErrAbortHandler)
	})
	r := p.request(t, "large")
	r.Sources = requirement.Sources{URL: url}
	must.StrContains(t, fails(t, uv(t), r, true).Words, "a download failed")
}

func TestInstall_UsesNoOtherIndexWhileTheFirstIsDown(t *testing.T) {
	p := newPlace(t)
	wheeltest.Wheel{Name: "report-tools", Version: "9.9"}.Write(t, p.wheels)
	r := p.request(t, "report-tools")
	down := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) })
	r.Sources = requirement.Sources{URL: wheeltest.Index(t, p.wheels).URL + "/simple", Extra: []string{down}}
	fails(t, uv(t), r, true)
}

// withPassword serves wheels on an index with the password s3cr3t/w. For each request, it calls the function saw.
func withPassword(t *testing.T, wheels string, saw func()) (url string) {
	handler := wheel.Index(wheels)
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
	i := uv(t)
	p := newPlace(t)
	hello(t, p.wheels)
	var mu sync.Mutex // guards argvs: uv sends requests concurrently
	var argvs, heard []string
	open := withPassword(t, p.wheels, func() {
		out, _ := exec.Command("ps", "-eo", "args").Output()
		mu.Lock()
		defer mu.Unlock()
		argvs = append(argvs, string(out))
	})
	for _, wanted := range []string{"hello-world", "missing-thing"} {
		r := newPlace(t).request(t, wanted)
		r.Sources = requirement.Sources{URL: strings.Replace(open, "://", "://someone:s3cr3t%2Fw@", 1)}
		err := i.Install(t.Context(), r)
		must.EqOp(t, wanted == "hello-world", err == nil)
		heard = append(heard, fmt.Sprint(err))
	}
	mu.Lock()
	defer mu.Unlock()
	must.SliceNotEmpty(t, argvs)
	for _, text := range append(argvs, heard...) {
		must.StrNotContains(t, text, "s3cr3t")
	}
}
