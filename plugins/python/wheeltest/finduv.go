package wheeltest

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// UV is the uv that tests use: $UV, or else that of the PATH. Where there is none that as can run (nil is this
// process's user) the test is skipped.
func UV(t testing.TB, as *syscall.Credential) string {
	t.Helper()
	uv := os.Getenv("UV")
	if uv == "" {
		var err error
		if uv, err = exec.LookPath("uv"); err != nil {
			t.Skip(err)
		}
	}
	cmd := exec.Command(uv, "--version")
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: as}
	if err := cmd.Run(); err != nil {
		t.Skip("no uv that the user who builds can run: ", err)
	}
	return uv
}
