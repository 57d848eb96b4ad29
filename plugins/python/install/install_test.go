package install_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestAnEnvironmentIsMadeOfADirectoryOfWheels(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		hello(t, p.wheels)
		check(t, p, i, p.request(t, "hello-world==2.0"))
	})
}

func TestAnEnvironmentIsMadeOfAnIndex(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		hello(t, p.wheels)
		r := p.request(t, "hello-world")
		r.Indexes = requirement.Indexes{URL: wheeltest.Index(t, p.wheels).URL + "/simple"}
		check(t, p, i, r)
	})
}

func check(t *testing.T, p place, i install.Installer, r install.Request) {
	t.Helper()
	result, python := must(t, i, r)
	if want := []string{"greeting-words 1.0", "hello-world 2.0"}; !slices.Equal(result.Packages, want) {
		t.Errorf("installed %q, not %q", result.Packages, want)
	}
	if out, err := exec.Command(filepath.Join(p.final(), "bin/hello")).CombinedOutput(); err != nil || string(out) != "hello 1.0\n" {
		t.Errorf("its program printed %q: %v", out, err)
	}
	// Another user, who can't write there, gets the compiled modules.
	cmd := exec.Command(python, "-I", "-v", "-c", "import hello_world; hello_world.fail()")
	if builder() != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, _ := cmd.CombinedOutput()
	minor := r.Python.Minor
	site := filepath.Join(p.final(), "lib/python"+minor+"/site-packages")
	for _, want := range []string{
		"# code object from '" + site + "/__pycache__/hello_world.cpython-" + strings.ReplaceAll(minor, ".", "") + ".pyc'",
		`File "` + site + `/hello_world.py", line 6, in fail`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is not in the interpreter's words:\n%s", want, out)
		}
	}
	if out, err := exec.Command("grep", "-rIl", p.env(), p.final()).Output(); err == nil {
		t.Errorf("these files still name the place of the build:\n%s", out)
	}
}

func TestAnEnvironmentCanBeInMemory(t *testing.T) {
	if _, err := os.Stat("/dev/shm"); err != nil {
		t.Skip("no /dev/shm")
	}
	t.Setenv("TMPDIR", "/dev/shm")
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		hello(t, p.wheels)
		if _, err := i.Install(t.Context(), p.request(t, "greeting-words")); err != nil {
			t.Errorf("%v\n%s", err, lines(err))
		}
	})
}

func TestTheInstallersWarningsAreKept(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		for line, want := range map[string]string{"hello-world": "", "hello-world[missing]": "missing"} {
			p := newPlace(t)
			hello(t, p.wheels)
			result, err := i.Install(t.Context(), p.request(t, line))
			if err != nil {
				t.Fatalf("%v\n%s", err, lines(err))
			}
			if text := strings.Join(result.Warnings, "\n"); want == "" && text != "" || !strings.Contains(text, want) {
				t.Errorf("%s: it warned %q", line, text)
			}
			t.Log(result.Warnings)
		}
	})
}
