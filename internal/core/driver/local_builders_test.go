// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/builders"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestStartTask_RefusesBuildersIDs(t *testing.T) {
	testsupport.NeedRoot(t) // to run tasks as others
	a := start(t, nil)
	for name, c := range map[string]struct{ user, config string }{
		"the first user":         {"79900", ""},
		"one in between":         {"79950:65534", ""},
		"the last user":          {"79999", ""},
		"the user with zeros":    {"079950", ""},
		"the group of the job":   {"nobody:79900", ""},
		"the group with zeros":   {"nobody:0079999", ""},
		"a supplementary group":  {"nobody", `groups = ["79942"]`},
		"one of several groups":  {"nobody", `groups = ["4", "79999"]`},
		"a group without a user": {"", `groups = ["79900"]`},
	} {
		cfg := a.shell("exit 0", c.config, func(cfg *drivers.TaskConfig) { cfg.User = c.user })
		_, _, err := a.StartTask(cfg)
		if err == nil {
			a.wait(cfg.ID)
			a.destroy(cfg.ID)
		}
		// An id that is not in canonical form may also be refused as none.
		if err == nil || !strings.Contains(err.Error(), "builds what tasks") && !strings.Contains(c.user, "0079999") &&
			!strings.HasPrefix(c.user, "0") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, user := range []string{"79899", "80000", "nobody:79899"} {
		_, r := a.result(a.shell("exit 0", "", func(cfg *drivers.TaskConfig) { cfg.User = user }))
		test.Eq(t, 0, r.ExitCode, test.Sprintf("user %s: %+v", user, r))
	}
}

func TestRefuseBuilders_RefusesDeclaredIDs(t *testing.T) {
	testsupport.NeedRoot(t) // the directory of builders is root's
	dir := filepath.Join(t.TempDir(), "builders")
	other := uint32(os.Getegid())
	for _, u := range []*task.User{{UID: 1234}, {GID: 1234}, {UID: 1, GID: 1, Groups: []uint32{2, 1234}}, nil} {
		must.NoError(t, os.RemoveAll(dir))
		test.NoError(t, refuseBuilders(dir, u), test.Sprintf("%+v, before it is declared", u))
		must.NoError(t, builders.Declare(dir, 4321))
		test.NoError(t, refuseBuilders(dir, u), test.Sprintf("%+v, where another", u))
		id := uint32(1234)
		if u == nil {
			id = other // the agent's own
		}
		must.NoError(t, builders.Declare(dir, id))
		test.ErrorContains(t, refuseBuilders(dir, u), fmt.Sprint("id ", id, " builds"), test.Sprintf("%+v", u))
		must.NoError(t, os.Chmod(dir, 0o777))
		test.ErrorContains(t, refuseBuilders(dir, &task.User{UID: 7, GID: 7}), "others may write",
			test.Sprint("where any user can write who builds"))
	}
}
