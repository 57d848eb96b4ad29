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
)

// TestLab_RunsInVM does what a developer does, without a terminal.
func TestLab_RunsInVM(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "tool", "mage", "lab:vm")
	cmd.Dir = repository(t)
	cmd.Env = append(os.Environ(), "NO_COLOR=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
	if address == "" {
		t.Fatalf("it does not say where the agent is:\n%s", said)
	}
	resp, err := http.Get(address + "/v1/nodes")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || !strings.Contains(string(body), `"outrider-vm"`) || !strings.Contains(string(body), `"exec-lite"`) {
		t.Errorf("the nodes: %s, %v", body, err)
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil { // as ^C
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if err != nil || !strings.Contains(string(rest), "The VM is gone") {
		t.Errorf("at the end it says %q, %v", rest, err)
	}
}
