// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/schema"
)

func TestForeign_OptionsGetOneSentence(t *testing.T) {
	const (
		cgroup    = `exec-lite keeps a task in the cgroup that Nomad made for it, with the limits of its resources block`
		container = `exec-lite runs a program of the node, or an artifact, and no container`
	)
	blocks := []any{map[string]any{"name": "x"}} // a block, as in Nomad's API, or a list of maps
	for name, row := range map[string]struct {
		config map[string]any
		want   string
	}{
		"cgroup_v1_override": {map[string]any{"cgroup_v1_override": blocks}, `option "cgroup_v1_override" of raw_exec: ` + cgroup},
		"cgroup_v2_override": {map[string]any{"cgroup_v2_override": "x.slice"}, `option "cgroup_v2_override" of raw_exec: ` + cgroup},
		"all of raw_exec": {
			map[string]any{"cgroup_v1_override": blocks, "cgroup_v2_override": "x", "denied_envvars": []any{}, "work_dir": "/",
				"oom_score_adj": 1, "args": []any{"x"}},
			`option "cgroup_v1_override", "cgroup_v2_override" of raw_exec: ` + cgroup},
		"pid_mode": {map[string]any{"pid_mode": "host"},
			`option "pid_mode" of exec: tasks of exec-lite see the processes and the IPC of the node`},
		"ipc_mode": {map[string]any{"ipc_mode": "private"},
			`option "ipc_mode" of exec: tasks of exec-lite see the processes and the IPC of the node`},
		"ports":              {map[string]any{"ports": []any{"http"}}, `option "ports" of docker: ` + container},
		"logging, mount":     {map[string]any{"logging": blocks, "mount": blocks}, `option "logging", "mount" of docker: ` + container},
		"image without more": {map[string]any{"image": "redis:7", "command": nil}, `option "image" of docker: ` + container},
		"image stands for all": {map[string]any{"image": "redis:7", "ports": []any{"db"}, "pid_mode": "host"},
			`option "image" of docker: ` + container},
		"none":           {map[string]any{"pid_mode": nil}, ""},
		"command is not": {map[string]any{"command": nil}, "command is empty: it must be set"},
	} {
		config := map[string]any{"command": "/bin/true"}
		for option, value := range row.config {
			config[option] = value
			if value == nil && option == "command" {
				delete(config, option)
			}
		}
		want := row.want
		if strings.HasPrefix(want, "option") {
			want += " (docs/guides/migrate.md)"
		}
		got := ""
		if _, err := schema.Of[TaskConfig]().DecodeAgent(config); err != nil {
			got = err.Error()
		}
		test.Eq(t, want, got, test.Sprint(name))
	}
}

// TestForeign_OptionsAreAllOfNomadsDrivers reads the options from the source of the Nomad version in go.mod.
func TestForeign_OptionsAreAllOfNomadsDrivers(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/hashicorp/nomad").Output()
	if err != nil || len(dir) < 2 {
		t.Skipf("Nomad's source is not in Go's module cache: %v", err)
	}
	known := (*TaskConfig)(nil).Refused()
	for _, row := range schema.Of[TaskConfig]().Doc() {
		known = append(known, row.Option)
	}
	option := regexp.MustCompile(`(?m)^\t\t"(\w+)":`)
	for _, source := range []string{"rawexec/driver.go", "exec/driver.go", "docker/config.go"} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "drivers", source))
		must.NoError(t, err)
		_, spec, _ := strings.Cut(string(text), "taskConfigSpec = ")
		spec, _, _ = strings.Cut(spec, "\n\t})\n")
		found := option.FindAllStringSubmatch(spec, -1)
		must.SliceNotEmpty(t, found, must.Sprint(source))
		for _, m := range found {
			if !slices.Contains(known, m[1]) {
				t.Errorf("%s: %q is neither an option of exec-lite nor refused with a sentence", source, m[1])
			}
		}
	}
}

func TestForeign_OptionsAreNotDocumented(t *testing.T) {
	s := schema.Of[TaskConfig]()
	for _, name := range (*TaskConfig)(nil).Refused() {
		test.StrNotContains(t, s.Markdown(), "`"+name+"`")
		test.StrNotContains(t, s.Example(""), "# "+name+" ")
	}
}
