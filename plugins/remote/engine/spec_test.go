// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

func TestDirWords_ReplacePathsOfTheNode(t *testing.T) {
	dirs := nodeDirs(&drivers.TaskConfig{AllocDir: "/opt/nomad/alloc/1-2", Name: "web"})
	for text, want := range map[string]string{
		"":                                                        "",
		"/opt/nomad/alloc/1-2/web":                                "${outrider_task_dir}",
		"/opt/nomad/alloc/1-2/web/":                               "${outrider_task_dir}/",
		"/opt/nomad/alloc/1-2/web/tmp":                            "${outrider_task_dir}/tmp",
		"/opt/nomad/alloc/1-2/web/local/c.yml":                    "${outrider_local_dir}/c.yml",
		"/opt/nomad/alloc/1-2/web/secrets":                        "${outrider_secrets_dir}",
		"/opt/nomad/alloc/1-2/alloc/data/x":                       "${outrider_alloc_dir}/data/x",
		"/opt/nomad/alloc/1-2/web/alloc/data/x":                   "${outrider_alloc_dir}/data/x",
		"--config=/opt/nomad/alloc/1-2/web/local/c.yml":           "--config=${outrider_local_dir}/c.yml",
		"-I/opt/nomad/alloc/1-2/web/local":                        "-I${outrider_local_dir}",
		"-Wl,-rpath,/opt/nomad/alloc/1-2/web/local/lib":           "-Wl,-rpath,${outrider_local_dir}/lib",
		"cc -I/opt/nomad/alloc/1-2/web/local x.c":                 "cc -I${outrider_local_dir} x.c",
		"file:///opt/nomad/alloc/1-2/web/local/a":                 "file://${outrider_local_dir}/a",
		`{"dir":"/opt/nomad/alloc/1-2/alloc"}`:                    `{"dir":"${outrider_alloc_dir}"}`,
		"/opt/nomad/alloc/1-2/web/local:/opt/nomad/alloc/1-2/web": "${outrider_local_dir}:${outrider_task_dir}",
		"(/opt/nomad/alloc/1-2/web/secrets), too":                 "(${outrider_secrets_dir}), too",
		// of something else
		"/opt/nomad/alloc/1-2":                               "/opt/nomad/alloc/1-2",
		"/opt/nomad/alloc/1-2/web2/local":                    "/opt/nomad/alloc/1-2/web2/local",
		"/opt/nomad/alloc/1-2/web-2":                         "/opt/nomad/alloc/1-2/web-2",
		"/opt/nomad/alloc/1-2/web/localhost":                 "${outrider_task_dir}/localhost",
		"/opt/nomad/alloc/1-2/alloc.bak":                     "/opt/nomad/alloc/1-2/alloc.bak",
		"/opt/nomad/alloc/1-2/webé":                          "/opt/nomad/alloc/1-2/webé",
		"/mnt/root/opt/nomad/alloc/1-2/web":                  "/mnt/root/opt/nomad/alloc/1-2/web",
		"../opt/nomad/alloc/1-2/web":                         "../opt/nomad/alloc/1-2/web",
		"/x/-y/opt/nomad/alloc/1-2/web":                      "/x/-y/opt/nomad/alloc/1-2/web",
		"/opt/nomad/alloc/1-22/web":                          "/opt/nomad/alloc/1-22/web",
		"x/opt/nomad/alloc/1-2/web /opt/nomad/alloc/1-2/web": "x/opt/nomad/alloc/1-2/web ${outrider_task_dir}",
	} {
		test.Eq(t, want, dirs.replace(text), test.Sprint(text))
	}
}

func TestEnvironment_IsTheEndpoints(t *testing.T) {
	agent := []string{"PATH=/agent/bin", "HOME=/root", "LANG=C", "NOMAD_PLUGIN_MAGIC_COOKIE=x"}
	s := &endpoint.Spec{
		Env: map[string]string{
			"PATH": "/agent/bin", "HOME": "/home/me", "LANG": "C", "USER_VAR": "1",
			"NOMAD_TASK_NAME": "web", "NOMAD_ALLOC_ID": "id", "NOMAD_SHORT_ALLOC_ID": "i", "NOMAD_DC": "dc1",
			"NOMAD_ALLOC_INDEX": "0", "NOMAD_ALLOC_NAME": "job.g[0]",
			"NOMAD_TOKEN": "t", "NOMAD_TOKEN_db": "t", "VAULT_TOKEN": "v", "NOMAD_META_TOKEN": "m",
			"NOMAD_CPU_LIMIT": "100", "NOMAD_MEMORY_LIMIT": "10", "NOMAD_UNIX_ADDR": "unix:///x/api.sock",
			"NOMAD_PARENT_CGROUP": "nomad.slice",
			"NOMAD_PORT_http":     "23456", "NOMAD_ADDR_http": "10.0.0.1:23456", "NOMAD_IP_http": "10.0.0.1",
			"NOMAD_HOST_PORT_http": "23456", "NOMAD_ADDR_db_sql": "10.0.0.1:5432", "NOMAD_PORT_sql": "5432",
		},
		Ports:     map[string]int{"http": 80, "my-port": 81},
		Resources: endpoint.Resources{Memory: 256 << 20},
		Process:   &endpoint.Process{},
	}
	env, differ := environment(s, "192.0.2.1", agent)
	test.Eq(t, map[string]string{
		"HOME": "/home/me", "USER_VAR": "1", "NOMAD_TASK_NAME": "web", "NOMAD_ALLOC_ID": "id",
		"NOMAD_SHORT_ALLOC_ID": "i", "NOMAD_DC": "dc1", "NOMAD_ALLOC_INDEX": "0", "NOMAD_ALLOC_NAME": "job.g[0]",
		"NOMAD_TOKEN": "t", "NOMAD_TOKEN_db": "t", "VAULT_TOKEN": "v", "NOMAD_META_TOKEN": "m", "NOMAD_MEMORY_LIMIT": "256",
		"NOMAD_PORT_http": "80", "NOMAD_ALLOC_PORT_http": "80", "NOMAD_HOST_PORT_http": "80", "NOMAD_IP_http": "192.0.2.1",
		"NOMAD_HOST_IP_http": "192.0.2.1", "NOMAD_ADDR_http": "192.0.2.1:80", "NOMAD_HOST_ADDR_http": "192.0.2.1:80",
		"NOMAD_PORT_my_port": "81", "NOMAD_ALLOC_PORT_my_port": "81", "NOMAD_HOST_PORT_my_port": "81",
		"NOMAD_IP_my_port": "192.0.2.1", "NOMAD_HOST_IP_my_port": "192.0.2.1", "NOMAD_ADDR_my_port": "192.0.2.1:81",
		"NOMAD_HOST_ADDR_my_port": "192.0.2.1:81",
		"NOMAD_ADDR_db_sql":       "10.0.0.1:5432", "NOMAD_PORT_sql": "5432",
	}, env)
	test.SliceContains(t, differ, "HOME", test.Sprint("another node's agent may have the value of the job's"))
	for _, name := range []string{"USER_VAR", "NOMAD_TASK_NAME", "NOMAD_ALLOC_INDEX", "NOMAD_ALLOC_NAME",
		"NOMAD_META_TOKEN", "NOMAD_MEMORY_LIMIT"} {
		test.SliceNotContains(t, differ, name)
		delete(env, name)
	}
	test.MapLen(t, len(differ), env, test.Sprint("what differs between allocations: ", differ))

	s.Process, s.Container = nil, &endpoint.Container{Publish: map[string]int{"http": 8080}}
	env, _ = environment(s, "192.0.2.1", agent)
	test.Eq(t, "80", env["NOMAD_PORT_http"])
	test.Eq(t, "192.0.2.1:8080", env["NOMAD_ADDR_http"])
	test.Eq(t, "", env["NOMAD_ADDR_my_port"], test.Sprint("the engine picks the port"))
	env, _ = environment(s, "", agent)
	test.Eq(t, "", env["NOMAD_ADDR_http"]+env["NOMAD_IP_http"], test.Sprint("the address is not known"))
}

func TestPayload_IsTheSameOnEveryNode(t *testing.T) {
	const a1, n1 = "8ba85cef-0000-4000-8000-000000000001", "11111111-0000-4000-8000-000000000001"
	const a2, n2 = "9ba85cef-0000-4000-8000-000000000002", "22222222-0000-4000-8000-000000000002"
	lang := map[string]string{n1: "C", n2: "POSIX"}
	hash := func(alloc, node string, edit func(*endpoint.Spec, taskDirs)) (string, *endpoint.Spec) {
		d := allocation(t, map[string]string{"web/local/a": "1", "web/secrets/nomad_token": alloc})
		c := &drivers.TaskConfig{AllocDir: d.AllocDir, Name: "web", AllocID: alloc, NodeID: node}
		s := &endpoint.Spec{
			Task: "web", Env: map[string]string{
				"NOMAD_ALLOC_ID": alloc, "NOMAD_TOKEN": node + alloc, "NOMAD_TASK_DIR": d.AllocDir + "/web/local",
				"MINE": "at " + node, "NOMAD_PORT_http": alloc[:4], "AGENT": node, "LANG": "C", // as one of the agents has it
			},
			Process: &endpoint.Process{Command: d.AllocDir + "/web/local/a", Args: []string{"--id", alloc}},
		}
		if edit != nil {
			edit(s, d)
		}
		given := *s
		given.Env, given.Process = maps.Clone(s.Env), &endpoint.Process{Command: s.Process.Command}
		agents := []string{"AGENT=" + node, "LANG=" + lang[node]}
		p, err := newPayload(t.Context(), &Task{Spec: s, Address: "192.0.2.1"}, c, agents)
		must.NoError(t, err)
		must.Eq(t, given.Env, s.Env, must.Sprint("the caller's was changed"))
		must.Eq(t, given.Process.Command, s.Process.Command)
		must.Eq(t, 65, len(p.hash))
		return p.hash, p.spec
	}
	first, spec := hash(a1, n1, nil)
	test.Eq(t, "${outrider_local_dir}/a", spec.Process.Command)
	test.Eq(t, "${outrider_local_dir}", spec.Env["NOMAD_TASK_DIR"])
	test.Eq(t, "at "+n1, spec.Env["MINE"], test.Sprint("only the hash is of all nodes"))
	second, _ := hash(a2, n2, nil)
	test.Eq(t, first, second)
	for name, edit := range map[string]func(*endpoint.Spec, taskDirs){
		"argument":    func(s *endpoint.Spec, _ taskDirs) { s.Process.Args = nil },
		"environment": func(s *endpoint.Spec, _ taskDirs) { s.Env["MINE"] = "" },
		"user":        func(s *endpoint.Spec, _ taskDirs) { s.User = "nobody" },
		"port":        func(s *endpoint.Spec, _ taskDirs) { s.Ports = map[string]int{"http": 1} },
		"file":        func(_ *endpoint.Spec, d taskDirs) { d.write(t, "web/local/a", "2") },
	} {
		other, _ := hash(a2, n2, edit)
		test.NotEq(t, first, other, test.Sprint(name))
	}
}

func TestSituation_KnowsAnObjectWhoseTemplateWasRenderedAgain(t *testing.T) {
	hash := func(command, files string) string {
		h, err := hashOf(&endpoint.Spec{Process: &endpoint.Process{Command: command}}, files, &drivers.TaskConfig{})
		must.NoError(t, err)
		return h
	}
	r := &endpoint.Record{Hash: hash("top", "first")}
	same := func(command, files string) bool {
		return (&situation{Hash: hash(command, files), Files: files}).same(r)
	}
	test.True(t, same("top", "first"))
	test.False(t, same("top", "second"))
	test.False(t, same("ps", "first"))
	r.Files = "second" // as it was copied again
	test.False(t, same("top", "first"))
	test.True(t, same("top", "second"))
	test.False(t, same("ps", "second"))
}

// A plugin of another version finds the tasks of this one by the names of their objects: it would start all of them
// anew where one changes.
func TestHash_IsThatOfEveryVersion(t *testing.T) {
	key := endpoint.Key{Cluster: "c", Region: "r", Namespace: "n", Job: "j", Group: "g", Task: "t", Index: 1, Node: "o"}
	program := endpoint.Spec{
		Task: "t", Env: map[string]string{"A": "1", "B": "2"}, VolatileEnv: []string{"B"}, User: "u",
		Resources: endpoint.Resources{CPU: 1.5, Memory: 2, Pids: 3}, Ports: map[string]int{"http": 80},
		MaxFiles: 4, MaxSize: 5,
	}
	process, container := program, program
	process.Process = &endpoint.Process{Command: "c", Args: []string{"a"}, WorkDir: "/w", Mode: "all"}
	container.Container = &endpoint.Container{
		Image: "i", Pull: "never", Entrypoint: []string{"e"}, Command: []string{"c"}, WorkDir: "/w", Network: "host",
		Mounts:  []endpoint.ContainerMount{{Type: "bind", Source: "/s", Target: "/t", ReadOnly: true}},
		Publish: map[string]int{"http": 8080},
	}
	least := endpoint.Spec{Task: "t", Env: map[string]string{}, Process: &endpoint.Process{Command: "c"}}
	for want, s := range map[string]endpoint.Spec{
		"nomad-a0871f8a25e51bc4a1632270-be8ea91c3e57 1b6acbfa0b26a7975d7c0b4ac9b6a2cb": process,
		"nomad-a0871f8a25e51bc4a1632270-b1b0fe313a09 23a007130b1ba6517697de7a1c715dcb": container,
		"nomad-a0871f8a25e51bc4a1632270-355c8e27bffd 8cce6a4375910fbef7f4f59798c2bf87": least,
	} {
		hash, err := hashOf(&s, "files", &drivers.TaskConfig{})
		must.NoError(t, err)
		test.Eq(t, want, key.Name(hash)+" "+programOf(hash))
	}
	d := allocation(t, map[string]string{"web/local/dir/a": "1"})
	must.NoError(t, os.Symlink("dir", filepath.Join(d.AllocDir, "web/local/link")))
	files, err := d.digest(t.Context())
	must.NoError(t, err)
	test.Eq(t, "ab4847b6fc9f21c24d983b6ba24d004d9dc0a192ef7ea4c635bb229c97cc4e14", files)
}
