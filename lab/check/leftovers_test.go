// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package check

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestLeftovers_AreReportedUntilRemoved(t *testing.T) {
	testsupport.NeedRoot(t) // mounts a tmpfs
	l, err := newLeftovers()
	must.NoError(t, err)
	mountPoint := filepath.Join(l.dir, "mounted")
	must.NoError(t, os.Mkdir(mountPoint, 0o755))
	out, err := exec.Command("mount", "-t", "tmpfs", "none", mountPoint).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	sleeper := exec.Command("sleep", "600")
	sleeper.Env = append(os.Environ(), "TMPDIR="+l.dir)
	must.NoError(t, sleeper.Start())

	left := strings.Join(l.own(), "\n")
	test.StrContains(t, left, "/proc/"+strconv.Itoa(sleeper.Process.Pid)+"/environ contains ")
	test.StrContains(t, left, "/proc/self/mountinfo contains ")
	impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	test.ErrorContains(t, l.check(impatient), "600")
	test.DirExists(t, l.dir)

	must.NoError(t, sleeper.Process.Kill())
	_ = sleeper.Wait()
	out, err = exec.Command("umount", mountPoint).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	test.SliceEmpty(t, l.own())
	must.NoError(t, os.RemoveAll(l.dir)) // check could report cgroups of other tests that run at the same time
}

func TestLeftovers_DirectoryIsShortIfTheFirstNameIsTaken(t *testing.T) {
	first, err := newLeftovers()
	must.NoError(t, err)
	second, err := newLeftovers()
	must.NoError(t, err)
	test.LessEq(t, len(first.dir)+1, len(second.dir), test.Sprintf("%s after %s", second.dir, first.dir))
	must.NoError(t, errors.Join(os.Remove(first.dir), os.Remove(second.dir)))
}
