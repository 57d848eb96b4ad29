// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

func recorded(t *testing.T, spec *Spec) *Spec {
	t.Helper()
	spec.Record = filepath.Join(t.TempDir(), "record")
	return spec
}

func wantProgress(t *testing.T, spec *Spec, want task.Progress) {
	t.Helper()
	test.Eq(t, want, task.ReadProgress(spec.Record), test.Sprint("progress"))
}

func TestRecord_ShowsThatTheProgramWasExecuted(t *testing.T) {
	nothingLeft(t)
	spec := recorded(t, shell("exit 3"))
	p, r, err := start(spec, nil)
	must.NoError(t, err)
	defer r.Close()
	wantProgress(t, spec, task.ProgressLaunching)
	must.NoError(t, p.Started(context.Background()))
	wantProgress(t, spec, task.ProgressExecuted)
	var ws unix.WaitStatus
	_, err = unix.Wait4(p.PID, &ws, 0, nil)
	must.NoError(t, err, must.Sprintf("status %v", ws))
	test.Eq(t, 3, ws.ExitStatus(), test.Sprintf("status %v", ws))
	unix.Close(p.TakePidFD())
	wantProgress(t, spec, task.ProgressExecuted)
}

func TestRecord_IsNotOpenInTheProgram(t *testing.T) {
	spec := recorded(t, shell("ls /proc/self/fd | wc -l; kill -STOP $$"))
	p, r, err := start(spec, nil)
	must.NoError(t, err)
	defer r.Close()
	must.NoError(t, p.Started(context.Background()))
	wantProgress(t, spec, task.ProgressExecuted) // while it is running
	b := make([]byte, 10)
	if n, _ := r.Read(b); string(b[:n]) != "4\n" { // 0, 1, 2, and the directory that ls reads
		t.Errorf("%q descriptors", b[:n])
	}
	_ = unix.PidfdSendSignal(p.pidfd, unix.SIGKILL, nil, 0)
	_, _ = unix.Wait4(p.PID, nil, 0, nil)
	unix.Close(p.TakePidFD())
}

// A launcher that fails removes its mark, regardless of the limits that it has set.
func TestRecord_NeverShowsAFailedStartAsExecuted(t *testing.T) {
	nothingLeft(t)
	for name, change := range map[string]func(*Spec){
		"no such program":      func(s *Spec) { s.Command.Path = "/nowhere/prog" },
		"no program at all":    func(s *Spec) { s.Command.Path = "/etc/passwd" },
		"no such directory":    func(s *Spec) { s.Command.Dir = "/nowhere" },
		"file size limit of 0": func(s *Spec) { s.Command.Path = "/nowhere/prog"; s.Command.Rlimits = noFiles },
	} {
		t.Run(name, func(t *testing.T) {
			spec := recorded(t, shell("exit 0"))
			change(spec)
			p, r, err := start(spec, nil)
			must.NoError(t, err)
			defer r.Close()
			test.Error(t, p.Started(context.Background()), test.Sprint("it started"))
			wantProgress(t, spec, task.ProgressNever)
		})
	}
}

var noFiles = []task.Rlimit{{Resource: unix.RLIMIT_FSIZE}}

func TestRecord_WorksUnderAFileSizeLimitOfZero(t *testing.T) {
	spec := recorded(t, shell("ulimit -f"))
	spec.Command.Rlimits = noFiles
	e := mustRun(t, spec)
	test.Eq(t, "0\n", e.out, test.Sprint("limit"))
	wantProgress(t, spec, task.ProgressExecuted)
}

// The supervisor dies when the launcher has received the whole spec. A program that ran now would have no supervisor.
func TestRecord_NeverShowsALauncherWithoutSupervisorAsExecuted(t *testing.T) {
	nothingLeft(t)
	file := filepath.Join(t.TempDir(), "ran")
	spec := recorded(t, shell("touch "+file))
	p, r, err := start(spec, nil)
	must.NoError(t, err)
	defer r.Close()
	must.NoError(t, unix.Kill(p.PID, unix.SIGSTOP)) // otherwise the launcher could run before the socket is closed
	_, err = p.status.Write(p.spec)
	must.NoError(t, err)
	p.status.Close()
	must.NoError(t, unix.Kill(p.PID, unix.SIGCONT))
	var ws unix.WaitStatus
	_, err = unix.Wait4(p.PID, &ws, 0, nil)
	must.NoError(t, err)
	unix.Close(p.TakePidFD())
	if _, err := os.Stat(file); err == nil || ws.ExitStatus() != 2 {
		t.Errorf("it ran: status %v, %v", ws, err)
	}
	wantProgress(t, spec, task.ProgressNever)
}

func TestRecord_ShowsThatALauncherWasKilled(t *testing.T) {
	spec := recorded(t, shell("exit 0"))
	p, r, err := start(spec, nil)
	must.NoError(t, err)
	defer r.Close()
	p.Kill()
	wantProgress(t, spec, task.ProgressNever)
}

// A program with a launcher's name is not mistaken for a launcher.
func TestLaunch_AcceptsAProgramWithALaunchersName(t *testing.T) {
	nothingLeft(t)
	path := filepath.Join(t.TempDir(), processName(StageExec))
	must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 3\n"), 0o755))
	for range 20 {
		spec := recorded(t, shell(""))
		spec.Command.Path, spec.Command.Args = path, nil
		e := mustRun(t, spec)
		test.Eq(t, 3, e.status.ExitStatus(), test.Sprintf("status %v", e.status))
	}
}

func TestLaunch_FailsWithoutARecord(t *testing.T) {
	nothingLeft(t)
	spec := shell("exit 0")
	spec.Record = "/nowhere/record"
	if p, _, err := start(spec, nil); err == nil {
		p.Kill()
		t.Error("it started")
	}
}
