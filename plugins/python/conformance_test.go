// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/conformance"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestMain(m *testing.M) { conformance.Main(m, main) }

func TestDriver_Conforms(t *testing.T) {
	testsupport.NeedPython(t)
	dir := t.TempDir() // has only one interpreter, because uv runs each interpreter that it finds
	must.NoError(t, errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)))
	must.NoError(t, os.Symlink(testsupport.Python, filepath.Join(dir, "python3")))
	conformance.Driver{Config: fmt.Sprintf("interpreters = [%q]", dir)}.Test(t)
}
