// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestLeftovers_AreToldUntilTheyAreGone(t *testing.T) {
	testsupport.NeedRoot(t) // to mount
	l, err := newLeftovers()
	must.NoError(t, err)
	check := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		return l.check(ctx)
	}
	mountPoint := filepath.Join(l.dir, "mounted")
	must.NoError(t, os.Mkdir(mountPoint, 0o755))
	out, err := exec.Command("mount", "-t", "tmpfs", "none", mountPoint).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	sleeper := exec.Command("sleep", "600")
	sleeper.Env = append(os.Environ(), "TMPDIR="+l.dir)
	must.NoError(t, sleeper.Start())

	err = check()
	test.ErrorContains(t, err, "process "+strconv.Itoa(sleeper.Process.Pid)+`: "sleep 600"`)
	test.ErrorContains(t, err, "mount ")
	test.DirExists(t, l.dir)

	must.NoError(t, sleeper.Process.Kill())
	_ = sleeper.Wait()
	out, err = exec.Command("umount", mountPoint).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	test.NoError(t, check())
	test.DirNotExists(t, l.dir)
}
