// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
)

// version is a program that prints what version it has of each module.
func version(modules ...string) conf {
	var lines []string
	for _, m := range modules {
		lines = append(lines, "import "+m, fmt.Sprintf("print(%q, %s.VERSION)", m, m))
	}
	return code(lines...)
}

func TestPythonEnvironment_IsBuiltOnce(t *testing.T) {
	t.Parallel()
	n := pythonNode.get(t)
	c := version("once", "below").with(needs(wheelhouse(t,
		wheel.Wheel{Name: "once", Version: "1.2", Requires: []string{"below>=2"}},
		wheel.Wheel{Name: "below", Version: "2.0"}), "once"))
	go1, go2 := filepath.Join(mkdir(t), "go"), filepath.Join(mkdir(t), "go")
	a := n.submit(t, py(t, c.until(go1)))
	for _, text := range []string{"Environment: not in the cache, building it with ", ": built in "} {
		test.NoError(t, a.tells(text))
	}
	touch(t, go1)
	a.ends(t, "exit 0", "once 1.2\nbelow 2.0\n")
	b := n.submit(t, py(t, c.until(go2)))
	test.NoError(t, b.tells(": cache hit"))
	test.StrNotContains(t, b.story(), "building", test.Sprint("it was built again"))
	touch(t, go2)
	b.ends(t, "exit 0", "once 1.2\nbelow 2.0\n")
}

func TestPythonEnvironment_IsBuiltOnceForManyTasks(t *testing.T) {
	t.Parallel()
	oneBuildForMany(t, pythonNode.get(t), 20)
}

func oneBuildForMany(t *testing.T, n *node, count int) {
	c := version("shared_by_all").with(needs(wheelhouse(t, wheel.Wheel{Name: "shared_by_all", Version: "3"}),
		"shared-by-all"))
	trigger := filepath.Join(mkdir(t), "go")
	j := py(t, c.until(trigger), func(j *api.Job, task *api.Task) {
		j.TaskGroups[0].Count = &count
		task.Resources.CPU = new(5)
	})
	n.submit(t, j)
	builds := 0
	all := n.allocs(t, *j.ID, count)
	testsupport.Within(t, 4*time.Minute, func() error { return n.countRunning(*j.ID, count) })
	for _, a := range all {
		testsupport.Within(t, time.Minute, func() error {
			if s := a.story(); !strings.Contains(s, ": built in ") && !strings.Contains(s, ": cache hit") {
				return fmt.Errorf("nothing tells of the environment: %s", s)
			}
			return nil
		})
		builds += strings.Count(a.story(), "building it with")
	}
	touch(t, trigger)
	for _, a := range all {
		a.ends(t, "exit 0", "shared_by_all 3\n")
	}
	test.Eq(t, 1, builds, test.Sprintf("%d builds for %d tasks", builds, count))
}

func TestPythonTasks_StartTogetherWithDifferentEnvironments(t *testing.T) {
	t.Parallel()
	n := pythonNode.get(t)
	wheels := wheelhouse(t, wheel.Wheel{Name: "either", Version: "1"}, wheel.Wheel{Name: "either", Version: "2"})
	one := n.submit(t, py(t, version("either").with(needs(wheels, "either==1"))))
	two := n.submit(t, py(t, version("either").with(needs(wheels, "either>=2"))))
	one.ends(t, "exit 0", "either 1\n")
	two.ends(t, "exit 0", "either 2\n")
}

// until has a program go on until a file is there, and so until a test has seen its events.
func (c conf) until(path string) conf {
	return c.with(code(c["code"].(string), "import os, time", "while not os.path.exists("+quote(path)+
		"): time.sleep(0.1)"))
}

// withRestarts has Nomad start a task that failed once more, at once.
func withRestarts(j *api.Job, _ *api.Task) {
	j.TaskGroups[0].RestartPolicy.Attempts = new(1)
	j.TaskGroups[0].RestartPolicy.Interval = new(time.Hour) // after which Nomad starts to count anew
}

func TestPythonBuild_FailsWithCause(t *testing.T) {
	t.Parallel()
	n := pythonNode.get(t)
	wheels := wheelhouse(t, wheel.Wheel{Name: "hashed", Version: "1"},
		wheel.Wheel{Name: "picky", Version: "1", Requires: []string{"hashed<1"}})
	must.NoError(t, (wheel.Wheel{Name: "sourceonly", Version: "1"}).WriteSource(wheels,
		"raise SystemExit('it was run')"))
	closed := closedPort(t)
	const wrong = "0000000000000000000000000000000000000000000000000000000000000000"

	for _, row := range []struct {
		name  string
		c     conf
		files map[string]string
		later bool // it may succeed later
		says  []string
	}{
		{"index that does not answer", conf{"requirements": []string{"anything"}, "index_url": "http://" + closed + "/simple"}, nil,
			true, []string{closed}},
		{"other file than the locked one", conf{"lock": "local/requirements.lock", "find_links": []string{wheels},
			"offline": true},
			map[string]string{"local/requirements.lock": "hashed==1 --hash=sha256:" + wrong + "\n"},
			false, []string{"hash", wrong[:12]}},
		{"requirements that contradict each other", needs(wheels, "picky", "hashed>=1"), nil,
			false, []string{"hashed", "picky"}},
		{"no such package", needs(wheels, "nosuchpackage"), nil,
			false, []string{"nosuchpackage"}},
		{"source alone", needs(wheels, "sourceonly"), nil,
			false, []string{"sourceonly", "from wheels alone"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			a := n.submit(t, py(t, version("never").with(row.c), withRestarts, func(_ *api.Job, task *api.Task) {
				for path, content := range row.files {
					task.Templates = append(task.Templates, &api.Template{EmbeddedTmpl: &content, DestPath: &path})
				}
			}))
			testsupport.Within(t, 4*time.Minute, func() error {
				if i, _, err := a.info(); err != nil || i.ClientStatus != "failed" {
					return fmt.Errorf("%v: %s", err, a.story())
				}
				return nil
			})
			for _, text := range append(row.says, api.TaskDriverFailure) {
				test.NoError(t, a.tells(text))
			}
			_, st, err := a.info()
			must.NoError(t, err)
			if again := st.Restarts > 0; again != row.later {
				t.Errorf("it was restarted: %v, want %v: %s", again, row.later, a.story())
			}
			test.StrNotContains(t, a.story(), "\n", test.Sprint("an event has several lines"))
		})
	}
}

// closedPort is an address of this machine that nobody listens at until the end of the
// test: it is taken.
func closedPort(t testing.TB) string {
	t.Helper()
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must.NoError(t, err)
	t.Cleanup(func() { unix.Close(socket) })
	must.NoError(t, unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	address, err := unix.Getsockname(socket)
	must.NoError(t, err)
	return fmt.Sprintf("127.0.0.1:%d", address.(*unix.SockaddrInet4).Port)
}
