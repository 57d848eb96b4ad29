// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// A node without Python is a node like any other: its agent starts, and Nomad places no
// program there until there is an interpreter.
func TestPythonNode_DetectsPythonOnceInstalled(t *testing.T) {
	t.Parallel()
	path := filepath.Join(mkdir(t), "python3")
	n := newNode(t, nodeOptions{python: &pythonOptions{more: fmt.Sprintf("interpreters = [%q]", filepath.Dir(path))}})
	node, _, err := n.Client().Nodes().Info(n.id(), nil)
	must.NoError(t, err)
	d := node.Drivers["python"]
	if d == nil || d.Detected || d.Healthy || !strings.HasPrefix(d.HealthDescription, "no Python interpreter") ||
		node.Attributes["driver.python"] != "" {
		t.Errorf("the driver is %+v, and its attribute %q", d, node.Attributes["driver.python"])
	}
	j := py(t, code("print('here')"))
	test.Eq(t, "missing drivers", n.unplaced(t, j), test.Sprint("the job is not placed because of"))
	must.NoError(t, os.Symlink("/usr/bin/python3", path))
	a := &alloc{n: n, job: *j.ID}
	testsupport.Within(t, 3*time.Minute, func() error { // at the next fingerprint
		list, _, err := n.Client().Jobs().Allocations(a.job, false, nil)
		if err != nil || len(list) == 0 {
			return fmt.Errorf("the job is not placed: %v", err)
		}
		a.id = list[0].ID
		return nil
	})
	a.ends(t, "exit 0", "here\n")
}
