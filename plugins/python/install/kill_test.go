// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

// helper has the test binary install what its standard input says.
const helper = "INSTALL_TEST_HELPER"

type errand struct {
	Installer install.Installer
	Request   install.Request // without Progress, which is no data
}

func TestMain(m *testing.M) {
	if os.Getenv(helper) == "" {
		file := trust()
		code := m.Run()
		os.Remove(file)
		os.Exit(code)
	}
	var e errand
	if err := json.NewDecoder(os.Stdin).Decode(&e); err != nil {
		panic(err)
	}
	_, err := e.Installer.Install(context.Background(), e.Request)
	if err != nil {
		panic(err)
	}
}

func TestInstall_EndsWithAKilledPlugin(t *testing.T) {
	testsupport.NeedRoot(t) // without root what the installer starts may outlive it
	tools(t, func(t *testing.T, i install.Installer) {
		for name, source := range map[string]bool{
			"a download": false, "a package's build, which hides in a session of its own": true,
		} {
			t.Run(name, func(t *testing.T) {
				p := newPlace(t)
				asked := make(chan struct{})
				var once sync.Once
				over := make(chan struct{})
				handler := wheeltest.Handler(p.wheels)
				url := serve(t, func(w http.ResponseWriter, r *http.Request) {
					if source && r.URL.Path != "/running" {
						handler.ServeHTTP(w, r)
						return
					}
					once.Do(func() { close(asked) })
					<-over
				})
				defer close(over)
				if source {
					// Processes that their parent does not know, one of which tells the index that they are there.
					wheeltest.Sdist{
						Name:    "slow",
						Version: "1.0",
						Code: "URL = '" + strings.TrimSuffix(url, "/simple") + "/running'" + `
import os, time, urllib.request
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        urllib.request.urlopen(URL)
    time.sleep(600)
time.sleep(600)
`,
					}.Write(t, p.wheels)
				}
				r := p.request(t, "slow")
				r.Progress, r.AllowSdists = nil, source
				r.Sources = index.Sources{URL: url}
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), helper+"=1")
				in, err := cmd.StdinPipe()
				must.NoError(t, err)
				cmd.Stderr = os.Stderr
				must.NoError(t, cmd.Start())
				w := bufio.NewWriter(in)
				must.NoError(t, json.NewEncoder(w).Encode(errand{i, r}))
				w.Flush()
				in.Close()
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }()
				select {
				case <-asked:
				case err := <-ended:
					t.Fatalf("the helper ended: %v", err)
				}
				test.SliceNotEmpty(t, p.processes(t), test.Sprint("no installer runs that could be left"))
				test.NoError(t, cmd.Process.Kill())
				<-ended
				p.nothingRuns(t)
			})
		}
	})
}
