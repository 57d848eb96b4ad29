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
	"sync"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// helper is the environment variable that makes the test binary call Install, with the arguments in JSON from stdin.
const helper = "INSTALL_TEST_HELPER"

type errand struct {
	Installer install.Installer
	Request   install.Request
}

func TestMain(m *testing.M) {
	if os.Getenv(helper) == "" {
		os.Exit(m.Run())
	}
	var e errand
	if err := json.NewDecoder(os.Stdin).Decode(&e); err != nil {
		panic(err)
	}
	err := e.Installer.Install(context.Background(), e.Request)
	if err != nil {
		panic(err)
	}
}

func TestInstall_EndsWhenThePluginIsKilled(t *testing.T) {
	testsupport.NeedRoot(t) // the test finds processes by the builder's user
	i := uv(t)
	p := newPlace(t)
	asked, over := make(chan struct{}), make(chan struct{})
	var once sync.Once
	url := serve(t, func(http.ResponseWriter, *http.Request) {
		once.Do(func() { close(asked) })
		<-over
	})
	defer close(over)
	r := p.request(t, "slow")
	r.Sources = requirement.Sources{URL: url}
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
	test.SliceNotEmpty(t, p.processes(t), test.Sprint("no installer is running"))
	test.NoError(t, cmd.Process.Kill())
	<-ended
	p.nothingRuns(t)
}
