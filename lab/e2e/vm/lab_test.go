// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm_test

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// TestLab_RunsInVM does what a developer does, without a terminal.
func TestLab_RunsInVM(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	t.Parallel()
	cmd := exec.Command("go", "tool", "mage", "lab:vm")
	cmd.Dir = repository(t)
	cmd.Env = append(os.Environ(), "NO_COLOR=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	must.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }()
	// the whole group: what mage has started holds the pipe open
	timeout := time.AfterFunc(10*time.Minute, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	defer timeout.Stop()

	var address, said string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		line := lines.Text()
		said += line + "\n"
		if rest, ok := strings.CutPrefix(line, "Web UI   "); ok {
			address, _, _ = strings.Cut(rest, "/ui")
		}
		if strings.Contains(line, "^C ends the VM") {
			break
		}
	}
	must.NotEq(t, "", address, must.Sprintf("it does not say where the agent is:\n%s", said))
	resp, err := http.Get(address + "/v1/nodes")
	must.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	must.NoError(t, err, must.Sprintf("the nodes: %s", body))
	must.StrContains(t, string(body), `"outrider-vm"`, must.Sprintf("the nodes: %s", body))
	test.StrContains(t, string(body), `"exec-lite"`, test.Sprintf("the nodes: %s", body))
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil { // as ^C
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	must.NoError(t, err, must.Sprintf("at the end it says %q", rest))
	test.StrContains(t, string(rest), "The VM is gone", test.Sprintf("at the end it says %q", rest))
}
