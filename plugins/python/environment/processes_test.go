package environment

import (
	"bufio"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestCache_BuildsOnceForManyProcesses(t *testing.T) {
	c := testCache(t)
	type process struct {
		in  io.WriteCloser
		out *bufio.Reader
		end func() error
	}
	var all []process
	for range 20 {
		cmd := helper(t, nil, "get", c.cfg.Dir)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all = append(all, process{in, bufio.NewReader(out), cmd.Wait})
	}
	for _, p := range all {
		if line, err := p.out.ReadString('\n'); line != "ready\n" {
			t.Errorf("got %q, %v", line, err)
		}
	}
	for _, p := range all {
		if _, err := io.WriteString(p.in, "go\n"); err != nil {
			t.Error(err)
		}
	}
	built := 0
	for _, p := range all {
		line, err := p.out.ReadString('\n')
		switch {
		case err != nil:
			t.Error(err)
		case line == "hit false\n":
			built++
		}
		p.in.Close()
		if err := p.end(); err != nil {
			t.Error(err)
		}
	}
	if built != 1 {
		t.Errorf("%d of them built", built)
	}
	mustBeTidy(t, c, 1)
}

func TestCache_BuildsAfterAKilledProcess(t *testing.T) {
	c := testCache(t)
	cmd := helper(t, nil, "block", c.cfg.Dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "building\n" {
		t.Errorf("got %q, %v", line, err)
	}
	mustTidy(t, c) // which leaves it alone
	if builds, err := filepath.Glob(filepath.Join(c.cfg.Dir, "builds/*/made/env/bin/python3")); len(builds) != 1 ||
		err != nil {
		t.Errorf("there are %v, %v", builds, err)
	}
	e := mustGet(t, c, Spec{Key: "k", Build: building(30), Waiting: func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
	}})
	defer e.Release()
	if err := cmd.Wait(); err == nil {
		t.Error("it ended by itself")
	}
	if e.Hit {
		t.Error("it cannot have been there")
	}
	mustTidy(t, c)
	mustBeTidy(t, c, 1)
}

// Two processes build, publish, lend, replace and evict as fast as they can, and
// one of them is killed at any moment.
func TestCache_SurvivesKillsAtAnyMoment(t *testing.T) {
	times := 150
	if testing.Short() {
		times = 25
	}
	c := testCache(t)
	for i := range times {
		var ended []func()
		for range 2 {
			cmd := helper(t, nil, "churn", c.cfg.Dir)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
				t.Errorf("got %q, %v", line, err)
			}
			ended = append(ended, func() {
				if err := cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
				if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
					t.Errorf("after %d times, a process ended by itself: %v", i, err)
				}
			})
		}
		for _, end := range ended {
			time.Sleep(time.Duration(rand.IntN(20_000)) * time.Microsecond) // any moment, no synchronisation
			end()
		}
		for _, key := range []string{"0", "1"} {
			e := mustGet(t, c, Spec{Key: key, Build: building(30)})
			if err := checkTree(e.Dir, 30); err != nil {
				t.Fatal(err)
			}
			e.Release()
		}
		states, err := filepath.Glob(filepath.Join(filepath.Dir(c.cfg.Dir), "task-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, state := range states {
			if err := os.Remove(state); err != nil {
				t.Fatal(err)
			}
		}
		mustTidy(t, c)
		mustBeTidy(t, c, 2)
		if t.Failed() {
			break
		}
	}
}
