// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/wheel"
	"github.com/outrider-dev/outrider/internal/core/wheel/wheeltest"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

func TestInstall_ShowsTheInstallersLastLines(t *testing.T) {
	zeros := strings.Repeat("0", 64)
	for _, row := range []struct {
		name   string
		lines  []string
		says   []string // parts of the error, in lower case
		hashed bool
	}{
		{"a missing package", []string{"missing-thing"}, []string{"missing-thing"}, false},
		{"a wheel for another interpreter", []string{"other-abi==1.0"},
			[]string{"other", "for cpython " + system(t).Version}, false},
		{"only sources", []string{"source"}, []string{"source", "with only wheels allowed"}, false},
		{"an invalid wheel", []string{"corrupt"}, []string{"corrupt"}, false},
		{"a file that does not match the lock", []string{"app==1.0 --hash=sha256:" + zeros},
			[]string{"hash", zeros}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			i := uv(t)
			p := newPlace(t)
			for _, w := range []wheeltest.Wheel{
				{Name: "app", Version: "1.0"},
				{Name: "app", Version: "2.0"},
				{Name: "other-abi", Version: "1.0", Tag: "cp27-cp27mu-win32"},
			} {
				w.Write(t, p.wheels)
			}
			must.NoError(t, wheel.Wheel{Name: "source", Version: "1.0"}.WriteSource(p.wheels, ""))
			corrupt := filepath.Join(p.wheels, "corrupt-1.0-py3-none-any.whl")
			must.NoError(t, os.WriteFile(corrupt, []byte("<html>not a wheel</html>"), 0o644))
			r := p.request(t, row.lines...)
			r.Requirements.Hashed = row.hashed
			e := fails(t, i, r, false)
			must.StrNotContains(t, e.Error(), "\n")
			text := strings.ToLower(strings.ReplaceAll(e.Error(), "_", "-"))
			for _, want := range row.says {
				must.StrContains(t, text, strings.ReplaceAll(want, "_", "-"))
			}
		})
	}
}

// Install must not request the index to find the cause, as it does after other failures: uv's output names a full disk.
func TestInstall_ReportsAFullDisk(t *testing.T) {
	i := uv(t)
	p := newPlace(t)
	small(t, p.dir, 8<<20, p.as)
	p.mkdirs(t)
	wheeltest.Wheel{
		Name:    "large",
		Version: "1.0",
		Files:   map[string]string{"large.bin": noise(12 << 20)},
	}.Write(t, p.wheels)
	handler := wheel.Index(p.wheels)
	var probed atomic.Bool
	r := p.request(t, "large")
	r.Sources = requirement.Sources{URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/simple/" {
			probed.Store(true)
		}
		handler.ServeHTTP(w, r)
	})}
	must.StrContains(t, fails(t, i, r, true).Words, "the disk is full")
	must.False(t, probed.Load())
	r.Requirements.Lines = []string{"missing"}
	fails(t, i, r, false)
	must.True(t, probed.Load(), must.Sprint("another failure"))
}

func TestInstall_EndsWithItsContext(t *testing.T) {
	i := uv(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	p := newPlace(t)
	r := p.request(t, "slow")
	r.Sources = requirement.Sources{URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-ctx.Done():
		}
	})}
	err := i.Install(ctx, r)
	must.ErrorIs(t, err, context.DeadlineExceeded)
	p.nothingRuns(t)
}

func TestInstall_StopsAnInstallerAboveMaxSize(t *testing.T) {
	i := uv(t)
	p := newPlace(t)
	for _, name := range []string{"first", "second"} {
		wheeltest.Wheel{
			Name:    name,
			Version: "1.0",
			Files:   map[string]string{name + ".bin": noise(3 << 20)},
		}.Write(t, p.wheels)
	}
	// the server never completes the second file, so only the limit can end the installer
	handler, ended := wheel.Index(p.wheels), make(chan struct{})
	defer close(ended)
	r := p.request(t, "first", "second")
	r.Sources = requirement.Sources{URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/files/second-") && r.Method == http.MethodGet && r.Header.Get("Range") == "" {
			w = &stalling{ResponseWriter: w, left: 5 << 19, until: ended}
		}
		handler.ServeHTTP(w, r)
	})}
	r.MaxSize = 4 << 20
	must.StrContains(t, fails(t, i, r, false).Words, "the packages take more than 4 MiB")
	p.nothingRuns(t)
}

// stalling sends the beginning of a response. When left reaches zero, it hangs until the channel is closed, or for a
// minute.
type stalling struct {
	http.ResponseWriter
	left  int
	until <-chan struct{}
}

func (w *stalling) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p[:min(len(p), w.left)])
	w.left -= n
	if err == nil && w.left == 0 {
		err = http.NewResponseController(w.ResponseWriter).Flush()
		select {
		case <-w.until:
		case <-time.After(time.Minute):
		}
		return n, errors.Join(err, http.ErrAbortHandler)
	}
	return n, err
}
