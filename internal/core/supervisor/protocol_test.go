// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// foreignVar makes the test binary a supervisor with another protocol. It listens at the path in this variable, and
// answers each request with the error that the request is unknown.
const foreignVar = "OUTRIDER_TEST_FOREIGN"

func foreignMain(path string) {
	l, err := net.Listen("unix", path)
	if err != nil {
		os.Exit(1)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			os.Exit(1)
		}
		var request struct {
			Seq uint64 `json:"seq"`
		}
		if json.NewDecoder(c).Decode(&request) == nil {
			_ = json.NewEncoder(c).Encode(map[string]any{
				"seq": request.Seq, "error": map[string]string{"message": `unknown request ""`},
			})
		}
	}
}

func TestClient_ReplacesASupervisorOfAnotherProtocol(t *testing.T) {
	h := newHost(t, withoutCgroup)
	must.NoError(t, os.MkdirAll(h.store.Dir, 0o700))
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), foreignVar+"="+h.store.Socket())
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	testsupport.Eventually(t, "it listens", func() bool {
		c, err := net.Dial("unix", h.store.Socket()) // the socket's file exists before a process listens
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	c := h.client()
	st := h.launch(c, h.shell("exit 3"))
	select {
	case err := <-ended:
		test.Error(t, err)
	case <-time.After(time.Minute):
		t.Error("it was not replaced")
	}
	h.ends(c, st.ID, task.Exit{Code: 3})
	h.destroy(c, st.ID)
}
