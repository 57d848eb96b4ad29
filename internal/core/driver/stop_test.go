package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTheRestOfATreeIsNotKilledBeforeItsTime(t *testing.T) {
	a := start(t, nil)
	for mode, session := range map[string]string{"group": "sh", "all": "setsid sh"} {
		file := filepath.Join(t.TempDir(), "done")
		rest := fmt.Sprintf("trap 'sleep 1; echo x > %s; exit' TERM; echo r; while :; do sleep 0.02; done", file)
		cfg := a.shell(session+` -c "`+rest+`" & trap 'exit 6' TERM; while :; do sleep 0.02; done`, `kill_mode = "`+mode+`"`)
		a.run(cfg)
		eventually(t, "both are ready", func() bool { return strings.Contains(a.output(cfg), "r\n") })
		must(t, a.StopTask(cfg.ID, time.Minute, "SIGTERM"))
		if _, err := os.Stat(file); err != nil {
			if a.share != "" || mode != "all" {
				t.Errorf("%s: it was killed amid its end: %v", mode, err)
			}
		}
		if r := a.wait(cfg.ID); r.ExitCode != 6 {
			t.Errorf("%s: got %+v", mode, r)
		}
		a.destroy(cfg.ID)
	}
}

func TestAStopDoesNotWaitForWhomItDidNotSignal(t *testing.T) {
	a := start(t, nil)
	for mode, rest := range map[string]string{"process": "sh", "group": "setsid -f sh"} {
		m := mark()
		cfg := a.shell(rest+" -c 'exec sleep "+m+"' & trap 'exit 6' TERM; echo r; while :; do sleep 0.02; done", `kill_mode = "`+mode+`"`)
		a.run(cfg)
		eventually(t, "both are ready", func() bool { return a.output(cfg) == "r\n" && len(sleepers(m)) == 1 })
		began := time.Now()
		must(t, a.StopTask(cfg.ID, 10*time.Minute, "SIGTERM"))
		if took := time.Since(began); took > 5*time.Minute {
			t.Errorf("%s: took %v", mode, took)
		}
		if left := sleepers(m); len(left) > 0 {
			t.Errorf("%s: left behind %v", mode, left)
		}
		a.destroy(cfg.ID)
	}
}

func TestASignalIsNotMistakenForAnother(t *testing.T) {
	for name, want := range map[string]int{"SIGHUP": 1, "hup": 1, " Term ": 15, "sigkill": 9, "USR1": 10, "RTMIN": 0, "SIGSIG": 0, "": 0, "9": 0, "SIG": 0} {
		sig, err := parseSignal(name)
		if int(sig) != want || (err == nil) != (want != 0) {
			t.Errorf("%q: got %d, %v", name, sig, err)
		}
	}
}
