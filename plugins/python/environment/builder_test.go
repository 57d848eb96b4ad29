// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/builders"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// helpWith is a process with these user ids (real, effective, saved), until its input ends.
func helpWith(ids string) {
	var real, effective, saved int
	_, err := fmt.Sscan(ids, &real, &effective, &saved)
	fatal(err)
	fatal(syscall.Setresuid(real, effective, saved))
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

// with starts a process with these user ids, and returns when it has them. It ends with the test at the latest.
func with(t *testing.T, real, effective, saved uint32) *peer {
	t.Helper()
	p := startPeer(t, nil, "ids", fmt.Sprint(real, effective, saved))
	t.Cleanup(func() { p.in.Close(); _ = p.Wait() })
	p.says(t, "ready")
	return p
}

// only is a user of this run of the tests alone, as is the one with the next id, in a directory of its own.
func only(t *testing.T) *Users {
	t.Helper()
	testsupport.NeedRoot(t) // without it there is one user only
	id := uint32(1_850_000_000 + 2*os.Getpid())
	return &Users{Dir: filepath.Join(t.TempDir(), "builders"), Only: &User{UID: id, GID: id}}
}

func TestUsers_GiveEachBuildItsOwn(t *testing.T) {
	testsupport.NeedRoot(t)                                            // without it there is one user only
	one, other := &Users{Dir: builders.Dir}, &Users{Dir: builders.Dir} // as the plugins of two agents have
	var ids []uint32
	for n := range 6 {
		taken, err := []*Users{one, other}[n%2].Take(t.Context(), nil)
		must.NoError(t, err)
		defer taken.Release()
		must.SliceNotContains(t, ids, taken.UID,
			must.Sprintf("build %d is user %d, group %d; others are", n, taken.UID, taken.GID))
		must.NotEq(t, Prober, taken.UID,
			must.Sprintf("build %d is user %d, group %d; others are", n, taken.UID, taken.GID))
		must.True(t, builders.Reserved(taken.UID),
			must.Sprintf("build %d is user %d, group %d; others are", n, taken.UID, taken.GID))
		test.Eq(t, taken.UID, taken.GID,
			test.Sprintf("build %d is user %d, group %d; others are", n, taken.UID, taken.GID))
		ids = append(ids, taken.UID)
	}
}

func TestUsers_OnlyServesOneBuildAtATime(t *testing.T) {
	users := only(t)
	first, err := users.Take(t.Context(), nil)
	must.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := users.Take(ctx, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	second := make(chan error)
	go func() {
		taken, err := users.Take(t.Context(), first.Release)
		if err == nil {
			taken.Release()
		}
		second <- err
	}()
	test.NoError(t, <-second)
	names, err := os.ReadDir(users.Dir)
	must.NoError(t, err, must.Sprint("left"))
	must.SliceLen(t, 2, names, must.Sprint("left"))
	test.Eq(t, fmt.Sprint(users.Only.UID), names[0].Name(), test.Sprint("left"))
	test.Eq(t, "lock", names[1].Name(), test.Sprint("left"))
	is, err := builders.Is(users.Dir, users.Only.UID)
	must.True(t, is, must.Sprint("other drivers do not know the user"))
	test.NoError(t, err, test.Sprint("other drivers do not know the user"))
}

func TestUsers_SkipThoseWithProcesses(t *testing.T) {
	users := only(t)
	cmd := with(t, users.Only.UID, users.Only.UID, users.Only.UID)
	_, err := users.Take(t.Context(), nil)
	test.ErrorContains(t, err, fmt.Sprint(cmd.Process.Pid))
	test.NoError(t, cmd.Process.Signal(syscall.Signal(0)),
		test.Sprint("the process of a user that is not reserved"))
}

func TestBuilder_ClearKillsEachProcess(t *testing.T) {
	users := only(t)
	id := users.Only.UID
	taken, err := users.Take(t.Context(), nil)
	must.NoError(t, err)
	defer taken.Release()
	for name, ids := range map[string][3]uint32{
		"all its ids": {id, id, id}, "its real id": {id, 0, 0}, "its effective id": {0, id, 0}, "its saved id": {0, 0, id},
	} {
		t.Run(name, func(t *testing.T) {
			other := with(t, id+1, id+1, id+1)
			cmd := with(t, ids[0], ids[1], ids[2])
			must.NoError(t, taken.Clear())
			has, _, err := isOf(cmd.Process.Pid, id)
			must.False(t, has, must.Sprint("it is still there"))
			must.NoError(t, err, must.Sprint("it is still there"))
			var exit *exec.ExitError
			err = cmd.Wait()
			must.True(t, errors.As(err, &exit), must.Sprintf("it ended by %v", err))
			test.Eq(t, syscall.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal(),
				test.Sprintf("it ended by %v", err))
			has, _, err = isOf(other.Process.Pid, id+1)
			must.True(t, has, must.Sprintf("another user's process: %v", has))
			test.NoError(t, err, test.Sprintf("another user's process: %v", has))
		})
	}
}
