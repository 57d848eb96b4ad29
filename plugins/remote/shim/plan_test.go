// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/account"
	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/shim/protocol"
)

func TestEnvironment_HasNoNameOfAnIdAlone(t *testing.T) {
	for _, c := range []struct {
		who  account.Account
		want string
	}{
		{account.Account{Name: "web", Home: "/home/web"}, "EMPTY= HOME=/home/web LOGNAME=web USER=web"},
		{account.Account{Home: "/"}, "EMPTY= HOME=/"},
	} {
		var got []string
		for _, v := range environment(map[string]string{"EMPTY": ""}, &c.who, strings.NewReplacer()) {
			if !strings.HasPrefix(v, "PATH=") && !strings.HasPrefix(v, "LANG=") {
				got = append(got, v)
			}
		}
		test.Eq(t, c.want, strings.Join(got, " "))
	}
}

// The supervisor goes on without a cgroup where the host refuses one.
func TestRan_TellsOfLimitsThatTheHostDidNotTake(t *testing.T) {
	asked := cgroup.Limits{MemoryMax: 1 << 20}
	for _, c := range []struct {
		mode    cgroup.Mode
		limits  cgroup.Limits
		planned string
		want    string
	}{
		{cgroup.V2, asked, "", ""},
		{cgroup.None, cgroup.Limits{}, "", ""},
		{cgroup.None, asked, "", "not enforced: the host could not make a cgroup for the task"},
		{cgroup.None, asked, "not enforced: as planned", "not enforced: as planned"},
	} {
		o := &stored{}
		o.ran(&task.State{Group: cgroup.Group{Mode: c.mode}, Limits: c.limits}, &plan{Limits: c.planned})
		test.Eq(t, c.want, o.More["limits"])
	}
}

func TestReach_OpensAStateDirectoryThatIsWrittenWithASlash(t *testing.T) {
	testsupport.NeedRoot(t)
	top := filepath.Join(t.TempDir(), "state")
	must.NoError(t, os.MkdirAll(filepath.Join(top, "objects"), 0o700))
	for dir := filepath.Dir(top); dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.Mode()&0o001 == 0 {
			must.NoError(t, os.Chmod(dir, info.Mode().Perm()|0o011))
		}
	}
	s, err := New(Config{StateDir: top + "/"})
	must.NoError(t, err)
	defer s.Close()
	must.NoError(t, s.reach(&task.User{UID: 65534, GID: 65534}))
}

func TestExec_RefusesWhatIsNoRequest(t *testing.T) {
	s, err := New(Config{StateDir: t.TempDir()})
	must.NoError(t, err)
	defer s.Close()
	for frame, want := range map[byte]string{
		protocol.FrameStdin: `a request is missing: frame 'i' came first`, protocol.FrameRequest: "request can't be read: ",
	} {
		var b bytes.Buffer
		must.NoError(t, protocol.WriteFrame(&b, frame, []byte("no JSON")))
		_, err := s.exec(t.Context(), &protocol.FrameReader{R: &b, MaxRequest: 100}, nil)
		test.ErrorContains(t, err, want)
	}
}
