package probe

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestWhatAProgramSaysIsReturnedWithHowItEnds(t *testing.T) {
	t.Setenv("SECRET", "the agent's")
	for name, c := range map[string]struct {
		script, stdout, stderr, err string
		is                          error
	}{
		"it answers":                    {script: "echo $PWD $A $SECRET; echo b >&2", stdout: "/ a\n", stderr: "b\n"},
		"it fails":                      {script: "echo a; echo b >&2; exit 3", stdout: "a\n", stderr: "b\n", err: "exit status 3"},
		"it says too much":              {script: "while :; do echo a line that is repeated; done", err: "said too much", is: ErrTooMuch},
		"it complains too much":         {script: "while :; do echo a line that is repeated; done >&2", err: "said too much", is: ErrTooMuch},
		"what it leaves has its output": {script: "sleep 1000 & echo $!", err: ""},
		"it was killed":                 {script: "kill -9 $$", err: "signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, err := Run(t.Context(), time.Minute, nil, []string{"A=a", "PATH=/usr/bin:/bin"}, "/bin/sh", "-c", c.script)
			if err == nil && c.err != "" || err != nil && err.Error() != c.err || !errors.Is(err, c.is) && c.is != nil {
				t.Errorf("the error is %v", err)
			}
			if strings.Contains(c.script, "$!") {
				gone(t, strings.TrimSpace(stdout))
			} else if c.is == nil && stdout != c.stdout || stderr != c.stderr && c.is == nil {
				t.Errorf("it said %q and %q", stdout, stderr)
			}
		})
	}
	if _, _, err := Run(t.Context(), time.Minute, nil, nil, "/nonexistent/program"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
}

func TestAProgramThatHangsIsKilledWithWhatItStarted(t *testing.T) {
	for name, want := range map[string]error{"its time is over": ErrLate, "nobody waits": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			pid := filepath.Join(t.TempDir(), "pid")
			script := "sleep 1000 & echo $! >" + pid + ".new; mv " + pid + ".new " + pid + "; wait"
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			limit := time.Minute
			if want == ErrLate {
				limit = 100 * time.Millisecond
			} else {
				go func() {
					for ctx.Err() == nil {
						if _, err := os.Stat(pid); err == nil {
							cancel()
						}
						time.Sleep(time.Millisecond)
					}
				}()
			}
			var child []byte
			for ; child == nil; limit *= 2 { // until it comes to have a child
				if limit > 2*time.Minute {
					t.Fatal("it has started nothing")
				}
				if _, _, err := Run(ctx, limit, nil, []string{"PATH=/usr/bin:/bin"}, "/bin/sh", "-c", script); !errors.Is(err, want) {
					t.Fatalf("the error is %v", err)
				}
				child, _ = os.ReadFile(pid)
			}
			gone(t, strings.TrimSpace(string(child)))
		})
	}
}

// gone waits until a process has ended, which init may not have been told yet.
func gone(t *testing.T, pid string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		status, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(status), ") Z ") {
			return
		}
	}
	t.Errorf("process %s is still there", pid)
	_ = exec.Command("kill", pid).Run()
}
