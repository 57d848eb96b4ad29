// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/agentapi"
)

// The responses are from Nomad 1.11.3.
func TestMeaning_DistinguishesTheReasonsForEndingATask(t *testing.T) {
	const migrated = `"DesiredStatus": "stop", "DesiredDescription": "alloc is being migrated", "DesiredTransition": `
	for name, row := range map[string]struct {
		alloc, job      string
		onDrain, onLost string
		release         bool
		reason          string
	}{
		"a restart":  {alloc: `{"DesiredStatus": "run", "ClientStatus": "running"}`, reason: "the task is restarted"},
		"alloc stop": {alloc: `{` + migrated + `{"Migrate": true, "Reschedule": true, "NoShutdownDelay": false}}`, reason: "alloc is being migrated"},
		"a drain":    {alloc: `{` + migrated + `{"Migrate": true}}`, release: true, reason: "the node is drained"},
		"a drain with on_drain stop": {
			alloc: `{` + migrated + `{"Migrate": true}}`, onDrain: "stop", reason: "on_drain is stop",
		},
		"a drain of a batch job": {
			alloc: `{` + migrated + `{"Migrate": true, "MigrateDisablePlacement": true}}`, job: `{"Type": "batch"}`,
			reason: "no other allocation follows",
		},
		"a drain of a system job": {
			alloc: `{` + migrated + `{"Migrate": true}}`, job: `{"Type": "system"}`, reason: "no other allocation follows",
		},
		"an update": {
			alloc:  `{"DesiredStatus": "stop", "DesiredDescription": "alloc is being updated due to job update"}`,
			reason: "alloc is being updated",
		},
		"a scale-down during a drain": {
			alloc: `{"DesiredStatus": "stop", "DesiredDescription": "alloc not needed due to job update",
				"DesiredTransition": {"Migrate": true}}`, reason: "not needed",
		},
		"preemption":      {alloc: `{"DesiredStatus": "evict"}`, reason: "preempted"},
		"a stopped job":   {alloc: `{` + migrated + `{"Migrate": true}}`, job: `{"Stop": true}`, reason: "the job was stopped"},
		"a purge":         {alloc: "none", job: "none", reason: "the job was purged"},
		"a lost node":     {alloc: `{"ClientStatus": "lost", "DesiredStatus": "stop"}`, release: true, reason: "given up on this node"},
		"an unknown node": {alloc: `{"ClientStatus": "unknown", "DesiredStatus": "run"}`, release: true, reason: "given up on this node"},
		"a lost node with on_lost restart": {
			alloc: `{"ClientStatus": "lost", "DesiredStatus": "stop"}`, onLost: "restart", reason: "on_lost is restart",
		},
		"a replacement wins at a reconnect": {
			alloc:   `{"DesiredStatus": "stop", "DesiredDescription": "alloc not needed due to disconnected client reconnect"}`,
			release: true, reason: "has replaced this one",
		},
		"an allocation that was collected": {alloc: "none", release: true, reason: "no longer has the allocation"},
		"no rights":                        {alloc: "403", release: true, reason: "failed to find out why"},
		"another namespace":                {alloc: "hidden", release: true, reason: "failed to find out why"},
		"an error":                         {alloc: "500", release: true, reason: "failed to find out why"},
		"an agent that hangs":              {alloc: "hangs", release: true, reason: "failed to find out why"},
		"an empty answer":                  {alloc: "{}", release: true, reason: "failed to find out why"},
		"not an object":                    {alloc: "null", release: true, reason: "failed to find out why"},
		"an empty job":                     {alloc: `{"DesiredStatus": "run"}`, job: "{}", release: true, reason: "failed to find out why"},
		"invalid JSON":                     {alloc: "<html>", release: true, reason: "failed to find out why"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			over := make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				must.Eq(t, "prod", r.URL.Query().Get("namespace"))
				answer, none, id := row.alloc, "alloc not found", "alloc"
				if r.URL.EscapedPath() == "/v1/job/a%2Fjob" {
					answer, none, id = row.job, "job not found", "a/job"
				}
				switch answer {
				case "":
					answer = `{"Type": "service"}`
				case "none":
					http.Error(w, none, http.StatusNotFound)
					return
				case "hidden":
					http.Error(w, "Unknown allocation", http.StatusNotFound)
					return
				case "403":
					http.Error(w, "Permission denied", http.StatusForbidden)
					return
				case "500":
					http.Error(w, "No cluster leader", http.StatusInternalServerError)
					return
				case "hangs":
					<-over
					return
				}
				if fields, whole := strings.CutPrefix(answer, `{"`); whole {
					answer = fmt.Sprintf(`{"ID": %q, "%s`, id, fields)
				}
				_, _ = w.Write([]byte(answer))
			}))
			defer server.Close()
			defer close(over)
			client := agentapi.New(agentapi.Config{Address: server.URL})
			defer client.CloseIdleConnections()
			s := &saved{Key: `["global","prod","a/job","","",""]`, OnDrain: "release", OnLost: "reattach"}
			if row.onDrain != "" {
				s.OnDrain = row.onDrain
			}
			if row.onLost != "" {
				s.OnLost = row.onLost
			}
			begun := time.Now()
			got := nomad{client: client}.ask(t.Context(), s, "alloc")
			must.Eq(t, row.release, got.release, must.Sprint(got.reason))
			must.StrContains(t, got.reason, row.reason)
			must.Less(t, 30*time.Second, time.Since(begun))
		})
	}
}

// A node that reconnects may start a task before it learns that another node has run the task.
func TestBegins_RefusesALostAllocation(t *testing.T) {
	for answer, want := range map[string]string{
		`{"ID": "alloc", "ClientStatus": "lost"}`:                                "Nomad has marked this allocation as lost",
		`{"ID": "alloc", "ClientStatus": "pending", "Job": {"Type": "service"}}`: "system false, wanted false",
		`{"ID": "alloc", "ClientStatus": "running", "DesiredStatus": "run"}`:     "system false, wanted true",
		`{"ID": "alloc", "ClientStatus": "unknown", "DesiredStatus": "run"}`:     "system false, wanted false",
		`{"ID": "alloc", "ClientStatus": "running", "Job": {"Type": "system"}}`:  "system true",
		`{"ID": "other", "ClientStatus": "lost", "Job": {"Type": "system"}}`:     "system false",
		`{"ID": "alloc", "DesiredStatus": "stop", "Job": {"Type": "sysbatch"}}`:  "system true", // a poststop task
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(answer))
		}))
		client := agentapi.New(agentapi.Config{Address: server.URL})
		system, wanted, err := nomad{client: client}.begins(t.Context(), "default", "alloc")
		got := fmt.Sprintf("system %t, wanted %t", system, wanted)
		if err != nil {
			got = err.Error()
		}
		must.StrHasPrefix(t, want, got, must.Sprint(answer))
		client.CloseIdleConnections()
		server.Close()
	}
}

func TestMeaning_IsNotQueriedIfNoOptionDependsOnIt(t *testing.T) {
	got := nomad{}.ask(t.Context(), &saved{OnDrain: "stop", OnLost: "restart"}, "alloc")
	must.Eq(t, meaning{}, got)
}

func TestIdentity_DependsOnTheTaskAndItsContent(t *testing.T) {
	cores := "" // reserved cores
	made := func(edit func(*drivers.TaskConfig, map[string]any)) (key, hash string) {
		cfg := &drivers.TaskConfig{
			AllocID: "alloc-1", NodeID: "node-1", Namespace: "default", JobID: "web", TaskGroupName: "g", Name: "main",
			AllocDir: "/nomad/alloc/alloc-1",
			Env: map[string]string{
				"NOMAD_REGION": "global", "NOMAD_ALLOC_INDEX": "0", "NOMAD_ALLOC_ID": "alloc-1", "NOMAD_DC": "dc1",
				"NOMAD_META_version": "1", "DATA": "/or/allocs/alloc-1/main/local", "VAULT_TOKEN": "x",
			},
			Resources: &drivers.Resources{
				NomadResources: &structs.AllocatedTaskResources{Cpu: structs.AllocatedCpuResources{CpuShares: 4000}},
				LinuxResources: &drivers.LinuxResources{CpusetCpus: cores},
			},
		}
		config := map[string]any{"command": "/or/allocs/alloc-1/main/local/run", "ulimit": []map[string]string{{"core": "0"}}}
		edit(cfg, config)
		must.NoError(t, cfg.EncodeConcreteDriverConfig(config))
		var decoded map[string]any
		must.NoError(t, cfg.DecodeDriverConfig(&decoded))
		hash, err := hashOf(cfg, decoded)
		must.NoError(t, err)
		return keyOf(cfg, ""), hash
	}
	key, hash := made(func(*drivers.TaskConfig, map[string]any) {})
	must.Eq(t, Names{Namespace: "default", Job: "web", Group: "g", Index: "0", Task: "main"}, NamesOf(key))
	must.Eq(t, Names{}, NamesOf(`["global","default"]`))
	for name, row := range map[string]struct {
		edit              func(*drivers.TaskConfig, map[string]any)
		sameKey, sameHash bool
	}{
		"another allocation on another node": {func(cfg *drivers.TaskConfig, config map[string]any) {
			cfg.AllocID, cfg.NodeID = "alloc-2", "node-2"
			cfg.Env["NOMAD_ALLOC_ID"], cfg.Env["NOMAD_DC"], cfg.Env["VAULT_TOKEN"] = "alloc-2", "dc2", "y"
			cfg.Env["DATA"] = strings.ReplaceAll(cfg.Env["DATA"], "alloc-1", "alloc-2")
			config["command"] = "/or/allocs/alloc-2/main/local/run"
		}, true, true},
		"another variable": {func(cfg *drivers.TaskConfig, _ map[string]any) { cfg.Env["DATA"] = "/srv" }, true, false},
		"other metadata": {func(cfg *drivers.TaskConfig, _ map[string]any) {
			cfg.Env["NOMAD_META_version"] = "2"
		}, true, false},
		"another command": {func(_ *drivers.TaskConfig, config map[string]any) { config["command"] = "run" }, true, false},
		"another user":    {func(cfg *drivers.TaskConfig, _ map[string]any) { cfg.User = "nobody" }, true, false},
		"another index": {func(cfg *drivers.TaskConfig, _ map[string]any) {
			cfg.Env["NOMAD_ALLOC_INDEX"] = "1"
		}, false, true},
		"more CPU": {func(cfg *drivers.TaskConfig, _ map[string]any) {
			cfg.Resources.NomadResources.Cpu.CpuShares = 8000
		}, true, false},
		"an option that is not set": {func(_ *drivers.TaskConfig, config map[string]any) {
			config["work_dir"], config["io_max"] = nil, []any{}
		}, true, true},
		"an option with its default": {func(_ *drivers.TaskConfig, config map[string]any) {
			config["nice"], config["on_drain"], config["no_new_privs"] = 0, "release", false
		}, true, true},
		"an option without its default": {func(_ *drivers.TaskConfig, config map[string]any) {
			config["no_new_privs"] = true
		}, true, false},
		"another block": {func(_ *drivers.TaskConfig, config map[string]any) {
			config["logs"] = map[string]any{"max_files": 10}
		}, true, false},
		"another job":       {func(cfg *drivers.TaskConfig, _ map[string]any) { cfg.JobID = "db" }, false, true},
		"another namespace": {func(cfg *drivers.TaskConfig, _ map[string]any) { cfg.Namespace = "prod" }, false, true},
	} {
		otherKey, otherHash := made(row.edit)
		must.Eq(t, row.sameKey, key == otherKey, must.Sprint(name))
		must.Eq(t, row.sameHash, hash == otherHash, must.Sprint(name))
	}
	cores = "0,1"
	_, reserved := made(func(*drivers.TaskConfig, map[string]any) {})
	_, ofFasterNode := made(func(cfg *drivers.TaskConfig, _ map[string]any) {
		cfg.Resources.NomadResources.Cpu.CpuShares = 8000
		cfg.Resources.LinuxResources.CpusetCpus = "4,5"
	})
	must.Eq(t, reserved, ofFasterNode)
	cores = "0"
	_, fewer := made(func(*drivers.TaskConfig, map[string]any) {})
	must.NotEq(t, reserved, fewer)
	must.NotEq(t, hash, fewer)
	var names []string
	must.NoError(t, json.Unmarshal([]byte(key), &names))
	must.Eq(t, []string{"global", "default", "web", "g", "0", "main", ""}, names)
}
