// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/nomad"
)

func TestRootFS_RunsItsOwnAgent(t *testing.T) {
	testsupport.Long(t, "makes a bare Debian")
	if err := Missing(); err != nil {
		t.Skip(err)
	}
	program, err := nomad.Binary(t.Context(), t.Logf)
	must.NoError(t, err)
	r, err := New(t.Context(), filepath.Join(t.TempDir(), "root"), program, t.Logf)
	must.NoError(t, err)
	defer func() {
		test.NoError(t, r.Close())
		_, err := os.Stat(r.Dir)
		test.ErrorIs(t, err, os.ErrNotExist)
	}()
	sh := func(commands string) string {
		out, err := r.Run(t.Context(), commands)
		must.NoError(t, err, must.Sprint(commands))
		return out
	}
	sh("systemctl start nomad")
	first := sh("pgrep -x nomad")
	test.StrContains(t, sh("nomad node status -self"), "ready")
	sh("systemctl restart nomad")
	test.NotEq(t, first, sh("pgrep -x nomad"), test.Sprint("the agent was not restarted"))
	sh("systemctl stop nomad; ! pgrep -x nomad")
	testsupport.Within(t, time.Minute, func() error { // process 1 may still have to reap the last process
		if left := sh("ps -eo stat,args --no-headers | grep '^Z' || true"); left != "" {
			return fmt.Errorf("zombies still exist: %s", left)
		}
		return nil
	})
	_, err = r.Run(t.Context(), "false\ntrue")
	test.Error(t, err, test.Sprint("the shell went on after an error"))
	sh("apt-get -qq install libusb-1.0-0")
}
