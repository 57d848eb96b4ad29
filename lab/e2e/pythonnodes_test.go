// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/agent"
)

func TestPythonNode_ReportsInterpreters(t *testing.T) {
	t.Parallel()
	n := pythonNode.get(t)
	i, _, err := n.Client().Nodes().Info(n.id(), nil)
	must.NoError(t, err)
	version := i.Attributes["driver.python.default"]
	parts := strings.Split(version, ".")
	must.SliceLen(t, 3, parts, must.Sprintf("driver.python.default is %q: %v", version, i.Attributes))
	versions := strings.Split(i.Attributes["driver.python.versions"], ",")
	for _, want := range []string{version, parts[0] + "." + parts[1]} {
		test.SliceContainsOp(t, versions, want,
			test.Sprintf("driver.python.versions is %q, want %s among them", versions, want))
	}
	test.NotEq(t, "", i.Attributes["driver.python.uv.version"])
}

// constrained is a job file with what a command has printed in it.
func constrained(t testing.TB, n *node, name, script, constraint string) *api.Job {
	t.Helper()
	j, err := n.Client().Jobs().ParseHCL(fmt.Sprintf(`
job %q {
  type = "batch"
  %s
  group "g" {
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "main" {
      driver = "python"
      config {
        script = %q
      }
      resources {
        cpu    = 20
        memory = 48
      }
    }
  }
}`, name, constraint, script), true)
	must.NoError(t, err, must.Sprintf("%v: %s", err, constraint))
	return j
}

func constraintOf(t testing.TB, script string) string {
	t.Helper()
	out, err := exec.Command(python, "constraint", script).Output()
	must.NoError(t, err, must.Sprintf("constraint %s", script))
	return string(out)
}

func TestPythonConstraint_PlacesJobWhereItFits(t *testing.T) {
	t.Parallel()
	n, dir := pythonNode.get(t), mkdir(t)
	script := func(name, python string) string {
		path := filepath.Join(dir, name)
		writeFile(t, path, []byte("# /// script\n# requires-python = \""+python+"\"\n# ///\nprint('ran')\n"))
		return path
	}
	fits, never := script("fits.py", ">=3.9"), script("never.py", "==3.9.99")

	c := constraintOf(t, fits)
	test.StrContains(t, c, "attr.driver.python.versions", test.Sprint("the constraint"))
	n.submit(t, constrained(t, n, "fits", fits, c)).ends(t, "exit 0", "ran\n")

	// without the constraint it comes to a node that has no such interpreter
	c = constraintOf(t, never)
	a := n.submit(t, constrained(t, n, "never", never, ""))
	a.ended(t)
	i, _, err := n.Client().Nodes().Info(n.id(), nil)
	must.NoError(t, err)
	for _, want := range []string{"3.9.99", "which has ", i.Attributes["driver.python.default"],
		"attr.driver.python.versions", `"set_contains"`} {
		test.NoError(t, a.tells(want))
	}
	must.NoError(t, agent.Purge(t.Context(), n.Client(), "default", "never"))
	waits := constrained(t, n, "never", never, c)
	test.StrContains(t, n.unplaced(t, waits), "driver.python.versions} set_contains 3.9.99",
		test.Sprint("why it waits"))
	testsupport.Within(t, time.Minute, func() error {
		j, _, err := n.Client().Jobs().Info("never", nil)
		if err == nil && *j.Status != "pending" {
			err = fmt.Errorf("the job is %s", *j.Status)
		}
		return err
	})
	_, _, err = n.Client().Jobs().Deregister("never", true, nil)
	must.NoError(t, err)
}
