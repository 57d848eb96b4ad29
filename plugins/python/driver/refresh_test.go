// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestRefresh_BuildsAnew(t *testing.T) {
	var gone atomic.Bool
	var handler http.Handler
	var holds atomic.Pointer[func()]
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if gone.Load() {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		if hold := holds.Load(); hold != nil {
			(*hold)()
		}
		w.Header().Set("Cache-Control", "max-age=600") // as PyPI has
		handler.ServeHTTP(w, r)
	}))
	defer index.Close()
	installers(t, func(t *testing.T, a *agent) {
		wheels := t.TempDir()
		sum := moon.Write(t, wheels)
		handler = wheeltest.Handler(wheels)
		gone.Store(false)
		files := map[string]string{"app.py": useMoon, "locked.txt": "moon-phase==1.2 --hash=sha256:" + sum + "\n"}
		runs := func(config, version, event string) {
			t.Helper()
			cfg := a.task("script = \"app.py\"\n"+config, files)
			test.StrHasPrefix(t, version+" ", a.runs(cfg), test.Sprint(config))
			a.says(cfg, event)
		}
		const any, refresh = "requirements = [\"moon-phase\"]\n", "refresh = true\n"
		runs(any+refresh, "1.2", "built in")
		runs(any+refresh, "1.2", ": cache hit") // a minute is not over
		a.python.minRefresh = 0
		later := moon
		later.Version = "1.3"
		later.Write(t, wheels)
		runs(any, "1.2", ": cache hit")
		runs(any+refresh, "1.3", "built in")
		runs(any, "1.3", ": cache hit")
		runs("lock = \"local/locked.txt\"\n", "1.2", "built in")
		runs("lock = \"local/locked.txt\"\n"+refresh, "1.2", "built in")

		// those that start together have one
		var all sync.WaitGroup
		built := make([]*drivers.TaskConfig, 5)
		for i := range built {
			built[i] = a.task("script = \"app.py\"\n"+any+refresh, files)
		}
		allWait := func() { // until all but the one that builds wait for it, or no longer than the installers do
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				waiting := 0
				for _, cfg := range built {
					if strings.Contains(fmt.Sprint(a.said(cfg)), "waiting for another task") {
						waiting++
					}
				}
				if waiting == len(built)-1 {
					return
				}
			}
		}
		holds.Store(&allWait)
		for _, cfg := range built {
			all.Go(func() { _, _, _ = a.StartTask(cfg) })
		}
		all.Wait()
		holds.Store(nil)
		a.hasSaid()
		times := 0
		for _, cfg := range built {
			if strings.Contains(fmt.Sprint(a.said(cfg)), "built in") {
				times++
			}
			a.wait(cfg)
			must.NoError(t, a.DestroyTask(cfg.ID, true))
		}
		test.Eq(t, 1, times, test.Sprintf("%d of %d tasks that started together built it", times, len(built)))

		gone.Store(true)
		runs(any+refresh, "1.3", "since it can't be refreshed")
	}, func(c *Config) { c.Offline, c.IndexURL = false, index.URL+"/simple" })
}
