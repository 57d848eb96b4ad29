// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// The files of a release: the handle that Nomad stores, and files of the task's directory before and after the exit.
const (
	savedFile  = "driver-state" // MessagePack
	stateFile  = "task.json"
	recordFile = "record"
	endedFile  = "record-ended"
)

// recordTask runs a task with as many options as possible, and ends it with exit code 7.
func recordTask(t *testing.T, dir string) {
	a := start(t, nil)
	end := filepath.Join(a.state, "end")
	cfg := a.shell(`echo ready; while [ ! -e "$END" ]; do sleep 0.05; done; exit 7`, `
		umask         = "0027"
		nice          = 5
		oom_score_adj = 100
		pids_limit    = 64
		kill_mode     = "all"
		groups        = ["daemon"]
		ulimit        = { nofile = "512:1024" }
		logs {
			max_files     = 3
			max_file_size = 2
		}`, func(cfg *drivers.TaskConfig) {
		cfg.User = "nobody"
		cfg.Devices = []*drivers.DeviceConfig{{HostPath: "/dev/null", TaskPath: "/dev/zigbee/tty", Permissions: "rw"}}
		cfg.Mounts = []*drivers.MountConfig{{HostPath: "/usr/share", TaskPath: "/dev/data", Readonly: true}}
	})
	cfg.Env = map[string]string{"PATH": "/usr/bin:/bin", "GREETING": "héllo", "END": end} // no variables of this machine
	must.NoError(t, os.Chmod(a.state, 0o711))
	th := a.run(cfg)
	store := task.Store{Dir: filepath.Join(a.state, "test-driver", a.node)}
	put := func(name string, content []byte) {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
	for from, to := range map[string]string{"task.json": stateFile, "record": recordFile} {
		b, err := os.ReadFile(filepath.Join(store.TaskDir(cfg.ID), from))
		must.NoError(t, err)
		put(to, b)
	}
	put(savedFile, th.DriverState)
	testsupport.RecordFields(t, dir, task.State{}, task.Exit{}, savedTask{})
	must.NoError(t, os.WriteFile(end, nil, 0o600))
	must.Eq(t, 7, a.wait(cfg.ID).ExitCode)
	b, err := os.ReadFile(store.Record(cfg.ID))
	must.NoError(t, err)
	put(endedFile, b)
	a.destroy(cfg.ID)
}

// After an upgrade, the driver must read the files that earlier versions wrote.
func TestState_OfEachReleaseIsRead(t *testing.T) {
	testsupport.NeedRoot(t)
	testsupport.EachRelease(t, recordTask, func(t *testing.T, dir string) {
		testsupport.KeepsFields(t, dir, task.State{}, task.Exit{}, savedTask{})
		written, err := os.ReadFile(filepath.Join(dir, stateFile))
		must.NoError(t, err)
		later := testsupport.LaterJSON(t, written, "v1")
		var first *task.State
		for _, content := range [][]byte{written, later} {
			st := readState(t, dir, content)
			test.Eq(t, "/bin/sh", st.Command.Path)
			test.Eq(t, "/dev/zigbee/tty", st.Command.Devices[0].TaskPath)
			test.Eq(t, task.Mount{Source: "/usr/share", Target: "/dev/data", ReadOnly: true},
				st.Command.Mounts[len(st.Command.Mounts)-1])
			test.SliceContains(t, st.Command.Env, "GREETING=héllo")
			test.Eq(t, 3, st.Output.MaxFiles)
			test.Positive(t, st.Identity.PID)
			if first == nil {
				first = st
			}
			test.Eq(t, first, st, test.Sprint("with fields of a later version"))
		}
		saved, err := os.ReadFile(filepath.Join(dir, savedFile))
		must.NoError(t, err)
		t.Run("handle", func(t *testing.T) { readHandle(t, saved, first) })
		t.Run("recover", func(t *testing.T) { recoverEnded(t, dir, saved, written, first) })
	})
}

// readState reads a task's directory in which the state file has this content.
func readState(t *testing.T, dir string, content []byte) *task.State {
	t.Helper()
	var id struct{ ID string }
	must.NoError(t, json.Unmarshal(content, &id))
	s := task.Store{Dir: t.TempDir()}
	must.NoError(t, os.MkdirAll(s.TaskDir(id.ID), 0o700))
	must.NoError(t, os.WriteFile(filepath.Join(s.TaskDir(id.ID), "task.json"), content, 0o600))
	for name, want := range map[string]*task.Exit{recordFile: nil, endedFile: {Code: 7}} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(s.Record(id.ID), b, 0o600))
		test.Eq(t, task.ProgressExecuted, task.ReadProgress(s.Record(id.ID)), test.Sprint(name))
		e := s.LoadExit(id.ID)
		if want == nil {
			test.Nil(t, e, test.Sprint(name))
			continue
		}
		must.NotNil(t, e, must.Sprint(name))
		test.Eq(t, want.Code, e.Code, test.Sprint(name))
		test.False(t, e.At.IsZero(), test.Sprintf("%s: %+v", name, e))
	}
	states, err := s.List()
	must.NoError(t, err)
	must.SliceLen(t, 1, states)
	return states[0]
}

// readHandle reads the stored handle, and then the same handle with fields that a later version might add.
func readHandle(t *testing.T, saved []byte, st *task.State) {
	th := drivers.NewTaskHandle(1)
	th.Config, th.DriverState = &drivers.TaskConfig{ID: st.ID, AllocID: st.AllocID, Name: st.Task}, saved
	h, engine, err := loadHandle(th)
	must.NoError(t, err)
	test.False(t, h.startedAt.IsZero(), test.Sprint("the time of the start is lost"))
	var was savedTask
	must.NoError(t, json.Unmarshal(engine, &was))
	test.Eq(t, task.KillAll, was.KillMode)
	test.Eq(t, st.Command, was.State.Command, test.Sprint("the handle and the disk have different commands"))
	test.StrHasSuffix(t, "/test-driver/"+filepath.Base(was.StoreDir), was.StoreDir)

	var fields map[string]any
	must.NoError(t, base.MsgPackDecode(saved, &fields))
	fields["a_field_of_a_later_version"] = map[string]any{"n": 1}
	fields["task"] = testsupport.LaterJSON(t, engine, "v1")
	var later []byte
	must.NoError(t, base.MsgPackEncode(&later, fields))
	th.DriverState = later
	h2, engine, err := loadHandle(th)
	must.NoError(t, err)
	test.Eq(t, h.startedAt, h2.startedAt)
	var is savedTask
	must.NoError(t, json.Unmarshal(engine, &is))
	test.Eq(t, was, is)
}

// recoverEnded lets the current driver recover a task that has ended, from its handle and its directory.
func recoverEnded(t *testing.T, dir string, saved, written []byte, st *task.State) {
	a := start(t, nil)
	var was savedHandle
	must.NoError(t, base.MsgPackDecode(saved, &was))
	var in savedTask
	must.NoError(t, json.Unmarshal(was.Task, &in))
	s := task.Store{Dir: filepath.Join(a.state, "test-driver", a.node)}
	was.Task = []byte(strings.ReplaceAll(string(was.Task), in.StoreDir, s.Dir))
	must.NoError(t, os.MkdirAll(s.TaskDir(st.ID), 0o700))
	record, err := os.ReadFile(filepath.Join(dir, endedFile))
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(s.Record(st.ID), record, 0o600))
	must.NoError(t, os.WriteFile(filepath.Join(s.TaskDir(st.ID), "task.json"), written, 0o600))
	th := drivers.NewTaskHandle(1)
	th.Config = &drivers.TaskConfig{ID: st.ID, AllocID: st.AllocID, Name: st.Task, NodeID: a.node, AllocDir: t.TempDir()}
	must.NoError(t, th.SetDriverState(&was))
	must.NoError(t, a.RecoverTask(th))
	r := a.wait(st.ID)
	test.NoError(t, r.Err)
	test.Eq(t, 7, r.ExitCode)
	a.destroy(st.ID)
}
