// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

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

func TestPythonNode_PlacesAJobByItsVersions(t *testing.T) {
	t.Parallel()
	n := pythonNode.get(t)
	i, _, err := n.Client().Nodes().Info(n.id(), nil)
	must.NoError(t, err)
	job := func(name, python, constraint string) *api.Job {
		j, err := n.Client().Jobs().ParseHCL(fmt.Sprintf(`
job %q {
  type = "batch"
  constraint {
    attribute = "${attr.driver.python.versions}"
    operator  = "set_contains_any"
    value     = %q
  }
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
        code   = "print('ran')"
        python = %q
      }
      resources {
        cpu    = 20
        memory = 48
      }
    }
  }
}`, name, constraint, python), true)
		must.NoError(t, err)
		return j
	}
	has := i.Attributes["driver.python.default"]
	n.submit(t, job("fits", ">=3.8", "3.99,"+has)).ends(t, "exit 0", "ran\n")

	a := n.submit(t, job("never", "==3.9.99", has))
	a.ended(t)
	for _, want := range []string{"3.9.99", "which has ", has, "attr.driver.python.versions"} {
		test.NoError(t, a.tells(want))
	}
	must.NoError(t, agent.Purge(t.Context(), n.Client(), "default", "never"))
	test.StrContains(t, n.unplaced(t, job("never", "==3.9.99", "3.9.99")),
		"driver.python.versions} set_contains_any 3.9.99", test.Sprint("why it waits"))
	_, _, err = n.Client().Jobs().Deregister("never", true, nil)
	must.NoError(t, err)
}
