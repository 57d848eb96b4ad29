package agent

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestConfig_HasEveryPluginWithItsOwnState(t *testing.T) {
	got := config(Options{
		Name: "n",
		Plugins: []Plugin{
			{Binary: "/x/bin/nomad-driver-exec-lite", Config: "state_dir = \"${state_dir}\"\nlog_collection = \"nomad\""},
			{Binary: "nomad-device-usb"},
		},
	}, layout{data: "/d/${x}", plugins: "/p", state: "/s", bind: "127.0.0.1", iface: "lo", http: 1, rpc: 2, serf: 3})
	for _, want := range []string{
		"plugin \"nomad-driver-exec-lite\" {\n  config {\n    state_dir = \"/s\"\n    log_collection = \"nomad\"\n  }\n}",
		"plugin \"nomad-device-usb\" {\n  config {\n  }\n}",
		`data_dir   = "/d/$${x}"`, // no template
		`bind_addr  = "127.0.0.1"`,
		"http = 1\n  rpc  = 2\n  serf = 3",
		`network_interface = "lo"`,
		`heartbeat_grace  = "5m"`, // tasks of a node that misses a heartbeat are lost
		`"fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestPlugin_NamesItsDriver(t *testing.T) {
	for binary, want := range map[string]string{
		"/b/nomad-driver-exec-lite": "exec-lite", "nomad-driver-python": "python", "/b/nomad-device-usb": "",
	} {
		if got := (Plugin{Binary: binary}).Driver(); got != want {
			t.Errorf("%s: got %q, want %q", binary, got, want)
		}
	}
	i := Info{Plugins: []string{"nomad-driver-a", "nomad-device-b"}}
	if got := i.Drivers(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("drivers %q", got)
	}
	if got := i.DevicePlugins(); !slices.Equal(got, []string{"nomad-device-b"}) {
		t.Errorf("device plugins %q", got)
	}
}

func TestPluginPIDs_FindsPluginsAmongProcesses(t *testing.T) {
	got := pluginPIDs(map[int]string{
		7: "/p/nomad-device-usb", 8: "/p/nomad-driver-x",
		70: "/p/nomad-device-usb", 71: "/p/nomad-device-usb", // its children, before they execute
		9:  "/p/nomad-device-usb simulate /tmp/x", // a task
		10: "/other/nomad-device-usb", 11: "/p/deep/nomad-device-usb", 12: "",
	}, "/p")
	if want := map[string]int{"nomad-device-usb": 7, "nomad-driver-x": 8}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestEnvironment_LeavesOutWhatPointsElsewhere(t *testing.T) {
	got := environment([]string{
		"PATH=/bin", "NOMAD_ADDR=http://elsewhere", "NOMAD_TOKEN=x", "VAULT_ADDR=y", "CONSUL_HTTP_ADDR=z",
		"AWS_CA_BUNDLE=/nowhere", "OUTRIDER_LAB_DIR=/other", "NOMADIC=1",
	}, "/dir", map[string]string{"LD_PRELOAD": "x.so", "A": "1"})
	want := []string{"PATH=/bin", "NOMADIC=1", "A=1", "LD_PRELOAD=x.so", "OUTRIDER_LAB_DIR=/dir"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestInteresting_KeepsErrorsOfALog(t *testing.T) {
	const log = "==> Starting\n  2026 [INFO]  agent: a\n  2026 [ERROR] agent: bad\n\n  2026 [INFO]  agent: b\n" +
		"panic: rpc error: code = Unknown desc = x\n"
	if got, want := interesting(log, 2), "  2026 [ERROR] agent: bad\npanic: x"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := interesting("  [INFO] a\n  [INFO] b\n", 1); got != "  [INFO] b" {
		t.Errorf("without trouble: %q", got)
	}
}

func TestInfo_IsReadBackOrReportedAsBroken(t *testing.T) {
	dir := t.TempDir()
	if _, err := readInfo(dir); err != ErrNone {
		t.Errorf("an empty directory: %v", err)
	}
	in := Info{Runtime: Host, Dir: dir, HTTP: 4646, Plugins: []string{"p"}, Sums: map[string]string{"p": "1"},
		Process: Process{PID: 7, Start: 8, Boot: "b"}}
	if err := in.write(); err != nil {
		t.Fatal(err)
	}
	out, err := readInfo(dir)
	if err != nil || out.HTTP != 4646 || out.Process != in.Process || out.Sums["p"] != "1" {
		t.Errorf("got %+v, %v", out, err)
	}
	left, _ := os.ReadDir(dir)
	if len(left) != 1 {
		t.Errorf("files: %v", left)
	}
	os.WriteFile(infoPath(dir), []byte(`{"runtime":`), 0o644)
	if _, err := readInfo(dir); err == nil || !strings.Contains(err.Error(), filepath.Base(infoPath(dir))) {
		t.Errorf("a broken file: %v", err)
	}
}

func TestResolve_TakesADirectoryThatDoesNotExist(t *testing.T) {
	dir := t.TempDir()
	os.Mkdir(filepath.Join(dir, "real"), 0o755)
	os.Symlink(filepath.Join(dir, "real"), filepath.Join(dir, "link"))
	got, err := resolve(filepath.Join(dir, "link", "new", "deep"))
	if want := filepath.Join(dir, "real", "new", "deep"); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestParseRuntime_KnowsThree(t *testing.T) {
	for in, want := range map[string]Runtime{"": Auto, "AUTO": Auto, "host": Host, "container": Container} {
		if got, err := ParseRuntime(in); err != nil || got != want {
			t.Errorf("%q: got %q, %v", in, got, err)
		}
	}
	if _, err := ParseRuntime("vm"); err == nil {
		t.Error("vm is taken for a runtime")
	}
}

func TestStateDir_IsInTmpForADeepDirectory(t *testing.T) {
	if got := stateDir("/srv/lab"); got != "/srv/lab/state" {
		t.Errorf("a short one: %q", got)
	}
	deep := "/home/somebody/src/github.com/outrider-dev/outrider/.lab"
	got := stateDir(deep)
	if len(got) > longestState || !strings.HasPrefix(got, "/tmp/outrider-") || got != stateDir(deep) ||
		got == stateDir(deep+"2") {
		t.Errorf("a deep one: %q", got)
	}
	file := filepath.Join(t.TempDir(), "taken")
	os.WriteFile(file, nil, 0o644)
	if err := makeStateDir(file); err == nil || !strings.Contains(err.Error(), "not ours") {
		t.Errorf("somebody else's: %v", err)
	}
}
