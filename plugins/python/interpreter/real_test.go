package interpreter

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

// patience is enough on a machine that is overloaded.
const patience = time.Minute

// system is the distribution's interpreter.
func system(t testing.TB) Interpreter {
	t.Helper()
	found := find(t, &Finder{Globs: []string{"/usr/bin/python3*"}, timeout: patience})
	if len(found) == 0 {
		t.Skip("there is no python3 in /usr/bin")
	}
	return found[0]
}

func TestFinder_FindsTheDistributionsPython(t *testing.T) {
	i := system(t)
	out, err := exec.Command("/usr/bin/python3", "-c",
		"import platform, sys, sysconfig; print(platform.python_version(), sys.prefix, "+
			"sysconfig.get_config_var('SOABI'), sysconfig.get_platform())").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join([]string{i.Version, i.Prefix, i.ABI, i.Platform}, " "),
		strings.TrimSpace(string(out)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if i.Path != "/usr/bin/python"+i.Minor || i.Real != i.Path || !slices.Contains(i.Names, "/usr/bin/python3") ||
		i.Implementation != "cpython" || i.FreeThreaded {
		t.Errorf("got %+v", i)
	}
	if !strings.HasPrefix(i.Full, i.Version+" (") || !strings.HasPrefix(i.Libc, "glibc ") && i.Libc != "musl" ||
		i.File.Inode == 0 || i.File.Size == 0 || i.File.ModTime == 0 {
		t.Errorf("got %+v", i)
	}
}

func TestFinder_FindsAWorkingPip(t *testing.T) {
	i := system(t)
	var pips [][]string
	if i.Pip != nil {
		pips = append(pips, i.Pip)
	}
	wheels, _ := filepath.Glob("/usr/share/python-wheels/pip-*.whl")
	said, err := ask(t.Context(), i.Path, nil, patience)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wheels {
		if !slices.Contains(said.Wheels, w) {
			t.Errorf("%s is not among %q", w, said.Wheels)
		}
	}
	for _, w := range wheels {
		pips = append(pips, []string{w + "/pip"})
		if v := wheelVersion(w); v == "" || v[0] < '0' || v[0] > '9' {
			t.Errorf("%s has version %q", w, v)
		}
	}
	if len(pips) == 0 {
		t.Skip("there is neither pip nor a wheel of it in /usr/share/python-wheels")
	}
	dir := t.TempDir()
	wheeltest.Wheel{Name: "demo", Version: "1.0"}.Write(t, dir)
	for n, pip := range pips {
		target := filepath.Join(dir, "target", string(rune('a'+n)))
		cmd := exec.Command(i.Path, append([]string{"-I"}, append(pip, "install", "--no-index", "--find-links", dir,
			"--target", target, "demo")...)...)
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%q: %v: %s", pip, err, out)
		}
		if _, err := os.Stat(filepath.Join(target, "demo.py")); err != nil {
			t.Errorf("%q: %v", pip, err)
		}
	}
}

func TestFinder_IgnoresVirtualEnvironments(t *testing.T) {
	i := system(t)
	dir := t.TempDir()
	if out, err := exec.Command(i.Path, "-m", "venv", "--without-pip", dir+"/venv").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f := &Finder{Globs: []string{dir + "/venv/bin/python3*", "/usr/bin/python3*"}, timeout: patience}
	found := find(t, f)
	n := slices.IndexFunc(found, func(f Interpreter) bool { return f.Path == i.Path })
	if n < 0 {
		t.Fatalf("%s is gone: %+v", i.Path, found)
	}
	for _, f := range found {
		for _, name := range f.Names {
			if strings.HasPrefix(name, dir) {
				t.Errorf("%s is taken for %s", name, f.Path)
			}
		}
	}
	mentions(t, f.Rejected(), dir+"/venv/bin/python", "is of a virtual environment")
	// a link from elsewhere to an interpreter is a name of it
	if err := os.Symlink(i.Path, dir+"/python3"); err != nil {
		t.Fatal(err)
	}
	f = &Finder{Globs: []string{dir + "/python3", "/usr/bin/python3*"}, timeout: patience}
	chosen, err := choose(find(t, f), dir+"/python3", pep(t, ""))
	if err != nil || chosen.Path != i.Path {
		t.Errorf("got %s, %v", chosen.Path, err)
	}
}

func TestFinder_FindsPyPy(t *testing.T) {
	found := find(t, &Finder{Globs: []string{"/usr/bin/pypy3*"}, timeout: patience})
	if len(found) == 0 {
		t.Skip("there is no pypy3 in /usr/bin")
	}
	if i := found[0]; i.Implementation != "pypy" || !strings.HasPrefix(i.ABI, "pypy") || !strings.Contains(i.Full,
		"PyPy") || filepath.Base(i.Path) != "pypy"+i.Minor || i.String() != i.Version+" (pypy)" {
		t.Errorf("got %+v", i)
	}
}
