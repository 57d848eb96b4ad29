package driver

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestMain_HasTheCommandsAndRolesOfThePlugin(t *testing.T) {
	exe, err := os.Executable()
	must(t, err)
	for args, want := range map[string]string{
		"say a b": "said [a b]\n",
		"help":    "say        say it back\n",
		"role":    "a role's work\n",
	} {
		cmd := exec.Command(exe, strings.Fields(args)...)
		cmd.Env = append(os.Environ(), binaryVar+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: got %q, %v", args, out, err)
		}
	}
}
