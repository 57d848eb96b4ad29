package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree writes files into a new directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestPlugins_AreTheModules(t *testing.T) {
	root := tree(t, map[string]string{
		"go.work":                   "go 1.26\n",
		"plugins/usb/go.mod":        "module x\n",
		"plugins/exec-lite/go.mod":  "module x\n",
		"plugins/exec-lite/main.go": "package main\n",
		"plugins/planned/README.md": "soon\n",
	})
	got, err := Plugins(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []Plugin{
		{Name: "exec-lite", Dir: filepath.Join(root, "plugins/exec-lite"), Binary: "nomad-driver-exec-lite"},
		{Name: "usb", Dir: filepath.Join(root, "plugins/usb"), Binary: "nomad-device-usb", Device: true, Libusb: true},
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %+v, want %+v", got, want)
	}

	for _, name := range []string{"usb", "nomad-device-usb"} {
		if one, err := Select(got, name); err != nil || len(one) != 1 || one[0].Name != "usb" {
			t.Errorf("%s: %+v, %v", name, one, err)
		}
	}
	if all, err := Select(got); err != nil || len(all) != 2 {
		t.Errorf("all: %+v, %v", all, err)
	}
	_, err = Select(got, "ubs")
	if err == nil || !strings.Contains(err.Error(), `"ubs"`) || !strings.Contains(err.Error(), "exec-lite, usb") {
		t.Errorf("a wrong name: %v", err)
	}
}

func TestRoot_IsFoundFromBelow(t *testing.T) {
	root := tree(t, map[string]string{"go.work": "go 1.26\n", "a/b/c.go": "package b\n"})
	if got, err := Root(filepath.Join(root, "a", "b")); err != nil || got != root {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := Root(t.TempDir()); err == nil || !strings.Contains(err.Error(), "go.work") {
		t.Errorf("outside: %v", err)
	}
}

func TestBuilder_ReportsTheCompilersMessages(t *testing.T) {
	root := tree(t, map[string]string{
		"plugins/broken/go.mod":  "module x\n\ngo 1.26\n",
		"plugins/broken/main.go": "package main\nfunc main() { undefinedThing() }\n",
	})
	t.Setenv("GOWORK", "off")
	plugins, err := Plugins(root)
	if err != nil || len(plugins) != 1 {
		t.Fatal(plugins, err)
	}
	_, err = Builder{Root: root}.Plugin(t.Context(), plugins[0])
	if err == nil || !strings.Contains(err.Error(), "undefinedThing") || !strings.Contains(err.Error(), "build broken") {
		t.Errorf("got %v", err)
	}
}

func TestBuilder_WritesToBinOfTheRepository(t *testing.T) {
	root := tree(t, map[string]string{
		"plugins/tiny/go.mod":  "module x\n\ngo 1.26\n",
		"plugins/tiny/main.go": "package main\nfunc main() {}\n",
	})
	t.Setenv("GOWORK", "off")
	t.Chdir(root)
	plugins, err := Plugins(".")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Builder{Root: "."}.Plugin(t.Context(), plugins[0])
	if want := filepath.Join(root, "bin", "nomad-driver-tiny"); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if _, err := os.Stat(filepath.Join(root, "bin", "nomad-driver-tiny")); err != nil {
		t.Error(err)
	}
}
