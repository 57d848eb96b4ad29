// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/sys/user"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
)

func TestExit_IsAsTheEngineTellsIt(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	state := func(code int, oom bool) container.State {
		return container.State{
			Status: container.StateExited, ExitCode: code, OOMKilled: oom,
			StartedAt: "2026-01-02T03:04:04Z", FinishedAt: at.Format(time.RFC3339Nano),
		}
	}
	reset, removing := state(0, false), state(0, false)
	reset.Status, removing.FinishedAt = container.StateCreated, "0001-01-01T00:00:00Z"
	for name, c := range map[string]struct {
		state container.State
		want  task.Exit
	}{
		"success":               {state(0, false), task.Exit{At: at}},
		"a code":                {state(127, false), task.Exit{Code: 127, At: at}},
		"no signal":             {state(128, false), task.Exit{Code: 128, At: at}},
		"a signal":              {state(143, false), task.Exit{Signal: 15, At: at}},
		"the last signal":       {state(192, false), task.Exit{Signal: 64, At: at}},
		"no signal any more":    {state(193, false), task.Exit{Code: 193, At: at}},
		"255":                   {state(255, false), task.Exit{Code: 255, At: at}},
		"255 of an engine":      {state(255, false), task.Exit{Lost: true, At: at}},
		"no memory":             {state(137, true), task.Exit{Signal: 9, OOMKilled: true, At: at}},
		"success all the same":  {state(0, true), task.Exit{At: at}},
		"unknown":               {state(-1, false), task.Exit{Lost: true, At: at}},
		"a restart of the host": {reset, task.Exit{Lost: true, At: at}},
		"a removal":             {removing, task.Exit{Lost: true}},
	} {
		got := exit(&box{state: &c.state, lost: name == "255 of an engine"})
		must.Eq(t, c.want.Lost, got.Reason != "", must.Sprint(name))
		got.Reason = ""
		must.Eq(t, &c.want, got, must.Sprint(name))
	}
}

func TestUsage_OfBothVersionsOfCgroups(t *testing.T) {
	for name, text := range map[string]string{
		"v1": `{"cpu_stats":{"cpu_usage":{"total_usage":1500000000}},"memory_stats":{"usage":10,"max_usage":20,
			"stats":{"total_rss":3,"total_cache":4,"total_swap":5}},"pids_stats":{"current":2}}`,
		"v2": `{"cpu_stats":{"cpu_usage":{"total_usage":1500000000}},"memory_stats":{"usage":10,
			"stats":{"anon":3,"file":4}},"pids_stats":{"current":2}}`,
	} {
		var s container.StatsResponse
		must.NoError(t, json.Unmarshal([]byte(text), &s))
		u := usage(&s)
		must.Eq(t, 1.5, u.CPU)
		must.Eq(t, []int64{10, 3, 4, 2}, []int64{u.Memory, u.RSS, u.Cache, int64(u.Processes)}, must.Sprint(name))
		must.Eq(t, name == "v1", u.MaxMemory == 20 && u.Swap == 5)
	}
}

// translated are the names of what is sent of a tar.
func translated(t *testing.T, dirs map[string]bool, headers ...tar.Header) ([]string, error) {
	var in, out bytes.Buffer
	w := tar.NewWriter(&in)
	for _, h := range headers {
		must.NoError(t, w.WriteHeader(&h))
	}
	must.NoError(t, w.Close())
	err := translate(&in, &user.ExecUser{Uid: 7, Gid: 8}, dirs, func(piece io.Reader) error {
		_, err := io.Copy(&out, piece)
		return err
	})
	names := map[string]bool{}
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		must.NoError(t, err)
		must.Eq(t, []int{7, 8}, []int{h.Uid, h.Gid})
		must.Eq(t, "", h.Uname)
		must.False(t, names[h.Name], must.Sprint(h.Name))
		names[h.Name] = true
	}
	return slices.Sorted(maps.Keys(names)), err
}

func TestTranslate_GivesAllToTheUser(t *testing.T) {
	file := tar.Header{Name: "local/a/b/f", Uid: 0, Uname: "root", Mode: 0o600}
	link := tar.Header{Name: "local/l", Typeflag: tar.TypeSymlink, Linkname: "/etc"}
	got, err := translated(t, map[string]bool{}, file, tar.Header{Name: "data/d", Mode: 0o644}, link)
	must.NoError(t, err)
	must.Eq(t, []string{
		"alloc/", "alloc/data/", "alloc/data/d", "local/", "local/a/", "local/a/b/", "local/a/b/f", "local/l", "secrets/",
	}, got)

	// where they are, directories keep their modes, but for those of the tar
	dirs := map[string]bool{"local": true, "local/a/b": true}
	got, err = translated(t, dirs, tar.Header{Name: "local/a/", Mode: 0o750, Typeflag: tar.TypeDir}, file,
		tar.Header{Name: "local/c/f"})
	must.NoError(t, err)
	must.Eq(t, []string{"local/a/", "local/a/b/f", "local/c/", "local/c/f"}, got)
	must.Eq(t, map[string]bool{"local": true, "local/a": true, "local/a/b": true, "local/c": true}, dirs)

	for _, dirs := range []map[string]bool{{}, {"local": true, "local/l/x": true}} {
		_, err = translated(t, dirs, link, tar.Header{Name: "local/l/x/y", Mode: 0o644})
		must.ErrorContains(t, err, "below a link")
	}
}

// Anybody's image can have our labels, but an engine gives a name once.
func TestView_TakesNothingOfAnotherName(t *testing.T) {
	labels := map[string]string{labelPlugin: labelValue, labelObject: "nomad-r"}
	e := &Endpoint{}
	for name, want := range map[string]int{"/quiet_name": 0, "/nomad-r2.e1": 0, "/nomad-r.e1": 1} {
		v, err := e.view(t.Context(), "nomad-r", []container.Summary{{ID: "1", Names: []string{name}, Labels: labels}})
		must.NoError(t, err)
		must.Len(t, want, v.damaged, must.Sprint(name))
	}
}
