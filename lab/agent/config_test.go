// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"
)

func TestConfig_HasEveryPluginWithItsOwnState(t *testing.T) {
	got, err := config(Options{
		Name: "n",
		Plugins: []Plugin{
			{Binary: "/x/bin/nomad-driver-exec-lite", Config: "state_dir = \"${state_dir}\"\nlog_collection = \"nomad\""},
			{Binary: "nomad-device-usb", Config: "file = \"${host_volume_plugin_dir}/x.hcl\"\nport = ${http_port}"},
		},
	}, layout{Data: "/d/${x}", Plugins: "/p", HostVolumes: "/v", State: "/s", Bind: "127.0.0.1", Interface: "lo"},
		Info{HTTP: 1, RPC: 2, Serf: 3})
	must.NoError(t, err)
	for _, want := range []string{
		"plugin \"nomad-driver-exec-lite\" {\n  config {\nstate_dir = \"/s\"\nlog_collection = \"nomad\"\n  }\n}",
		"plugin \"nomad-device-usb\" {\n  config {\nfile = \"/v/x.hcl\"\nport = 1\n  }\n}",
		`host_volume_plugin_dir = "/v"`,
		`data_dir   = "/d/$${x}"`, // escaped, so HCL does not expand it
		`bind_addr  = "127.0.0.1"`,
		"http = 1\n  rpc  = 2\n  serf = 3",
		`network_interface = "lo"`,
		`heartbeat_grace  = "5m"`, // after a missed heartbeat, the server would mark tasks as lost
		`"fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean`,
	} {
		test.StrContains(t, got, want, test.Sprintf("missing: %q", want))
	}
}

func TestPlugin_NamesItsDriver(t *testing.T) {
	for binary, want := range map[string]string{
		"/b/nomad-driver-exec-lite": "exec-lite", "nomad-driver-python": "python", "/b/nomad-device-usb": "",
	} {
		test.Eq(t, want, (Plugin{Binary: binary}).Driver(), test.Sprint(binary))
	}
	i := Info{Plugins: []string{"nomad-driver-a", "nomad-device-b"}}
	test.SliceEqOp(t, []string{"a"}, i.Drivers(), test.Sprint("drivers"))
}

func TestEnvironment_OmitsSettingsOfOtherAgents(t *testing.T) {
	got := environment([]string{
		"PATH=/bin", "NOMAD_ADDR=http://elsewhere", "NOMAD_TOKEN=x", "VAULT_ADDR=y", "CONSUL_HTTP_ADDR=z",
		"AWS_CA_BUNDLE=/nowhere", "OUTRIDER_LAB_DIR=/other", "NOMADIC=1",
	}, "/dir")
	want := []string{"PATH=/bin", "NOMADIC=1", "PLUGIN_UNIX_SOCKET_DIR=/dir/state", "OUTRIDER_LAB_DIR=/dir"}
	test.SliceEqOp(t, want, got)
}

func TestInfo_RoundTripsOrReportsABrokenFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := readInfo(dir); err != ErrNone {
		t.Errorf("an empty directory: %v", err)
	}
	in := Info{Runtime: Host, Dir: dir, HTTP: 4646, Plugins: []string{"p"},
		Process: task.Identity{PID: 7, Start: 8, BootID: "b"}}
	must.NoError(t, in.write())
	out, err := readInfo(dir)
	must.NoError(t, err, must.Sprintf("got %+v", out))
	must.Eq(t, 4646, out.HTTP, must.Sprintf("got %+v", out))
	must.EqOp(t, in.Process, out.Process, must.Sprintf("got %+v", out))
	left, _ := os.ReadDir(dir)
	test.SliceLen(t, 1, left, test.Sprint("files"))
	os.WriteFile(infoPath(dir), []byte(`{"runtime":`), 0o644)
	_, err = readInfo(dir)
	test.ErrorContains(t, err, filepath.Base(infoPath(dir)), test.Sprint("a broken file"))
}

func TestStateDir_IsInTmpForADeepDirectory(t *testing.T) {
	test.Eq(t, "/srv/lab/state", stateDir("/srv/lab"), test.Sprint("a short path"))
	deep := "/home/somebody/src/github.com/outrider-dev/outrider/.lab"
	got := stateDir(deep)
	must.False(t, len(got) > longestState, must.Sprint("a long path"))
	must.StrHasPrefix(t, "/tmp/outrider-", got, must.Sprint("a long path"))
	must.Eq(t, stateDir(deep), got, must.Sprint("a long path"))
	test.NotEq(t, stateDir(deep+"2"), got, test.Sprint("a long path"))
	file := filepath.Join(t.TempDir(), "taken")
	os.WriteFile(file, nil, 0o644)
	test.ErrorContains(t, makeStateDir(file), file, test.Sprint("a file in its place"))
}
