// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package build

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// tree writes files, whose content is given by path, into a new directory, and returns the directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		os.MkdirAll(filepath.Dir(path), 0o755)
		must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

func TestPlugins_ListsModules(t *testing.T) {
	root := tree(t, map[string]string{
		"go.work":                   "go 1.26\n",
		"plugins/usb/go.mod":        "module x\n",
		"plugins/exec-lite/go.mod":  "module x\n",
		"plugins/exec-lite/main.go": "package main\n",
		"plugins/planned/README.md": "soon\n",
	})
	got, err := Plugins(root)
	must.NoError(t, err)
	want := []Plugin{
		{Name: "exec-lite", Dir: filepath.Join(root, "plugins/exec-lite"), Binary: "nomad-driver-exec-lite"},
		{Name: "usb", Dir: filepath.Join(root, "plugins/usb"), Binary: "nomad-device-usb", Device: true, Libusb: true},
	}
	must.SliceLen(t, 2, got, must.Sprintf("got %+v, want %+v", got, want))
	must.EqOp(t, want[0], got[0], must.Sprintf("got %+v, want %+v", got, want))
	test.EqOp(t, want[1], got[1], test.Sprintf("got %+v, want %+v", got, want))

	for _, name := range []string{"usb", "nomad-device-usb"} {
		one, err := Select(got, name)
		must.NoError(t, err, must.Sprint(name))
		must.SliceLen(t, 1, one, must.Sprint(name))
		test.Eq(t, "usb", one[0].Name, test.Sprint(name))
	}
	if all, err := Select(got); err != nil || len(all) != 2 {
		t.Errorf("all: %+v, %v", all, err)
	}
	_, err = Select(got, "ubs")
	if err == nil || !strings.Contains(err.Error(), `"ubs"`) || !strings.Contains(err.Error(), "exec-lite, usb") {
		t.Errorf("a wrong name: %v", err)
	}
}

func TestRoot_IsFoundFromASubdirectory(t *testing.T) {
	root := tree(t, map[string]string{"go.work": "go 1.26\n", "a/b/c.go": "package b\n"})
	got, err := Root(filepath.Join(root, "a", "b"))
	must.NoError(t, err)
	test.Eq(t, root, got)
	_, err = Root(t.TempDir())
	test.ErrorContains(t, err, "go.work", test.Sprint("outside"))
}

func TestBuilder_ReportsTheCompilersMessages(t *testing.T) {
	root := tree(t, map[string]string{
		"plugins/broken/go.mod":  "module x\n\ngo 1.26\n",
		"plugins/broken/main.go": "package main\nfunc main() { undefinedThing() }\n",
	})
	t.Setenv("GOWORK", "off")
	plugins, err := Plugins(root)
	must.NoError(t, err)
	must.SliceLen(t, 1, plugins)
	_, err = Builder{Root: root}.Plugin(t.Context(), plugins[0])
	if err == nil || !strings.Contains(err.Error(), "undefinedThing") || !strings.Contains(err.Error(), "build broken") {
		t.Errorf("got %v", err)
	}
}

func TestBuilder_ReleaseDoesNotDependOnTheEnvironment(t *testing.T) {
	settings := []string{"GOFLAGS", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOFIPS140", "GOWORK", "CGO_ENABLED"}
	env := func() string {
		cmd := exec.Command("go", append([]string{"env"}, settings...)...)
		cmd.Env = append(os.Environ(), Builder{Release: true}.Env(false)...)
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprintf("%s", out))
		return string(out)
	}
	want := env()
	for name, value := range map[string]string{"GOFLAGS": "-race", "GOAMD64": "v3", "GOARM64": "v9.0",
		"GOEXPERIMENT": "jsonv2", "GOFIPS140": "latest", "GOWORK": "/x/go.work", "CGO_ENABLED": "1"} {
		t.Setenv(name, value)
	}
	test.Eq(t, want, env())
}

func TestBuilder_WritesToBinOfTheRepository(t *testing.T) {
	root := tree(t, map[string]string{
		"plugins/tiny/go.mod":  "module x\n\ngo 1.26\n",
		"plugins/tiny/main.go": "package main\nfunc main() {}\n",
	})
	t.Setenv("GOWORK", "off")
	t.Chdir(root)
	plugins, err := Plugins(".")
	must.NoError(t, err)
	got, err := Builder{Root: "."}.Plugin(t.Context(), plugins[0])
	must.NoError(t, err)
	test.Eq(t, filepath.Join(root, "bin", "nomad-driver-tiny"), got)
	_, err = os.Stat(filepath.Join(root, "bin", "nomad-driver-tiny"))
	test.NoError(t, err)
}
