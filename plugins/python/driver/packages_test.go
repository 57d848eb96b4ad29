// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
	"github.com/outrider-dev/outrider/internal/core/wheel/wheeltest"
)

// uv returns the path of a uv that the build user can run.
func uv(t *testing.T) string {
	var as *syscall.Credential
	if os.Geteuid() == 0 {
		as = &syscall.Credential{Uid: 79999, Gid: 79999} // build_user's default
	}
	uv := wheel.FindUV(as)
	if uv == "" {
		t.Skip("found no uv that the build user can run")
	}
	return uv
}

// withWheels writes wheels to a task's local directory, and returns their checksums.
func (a *agent) withWheels(cfg *drivers.TaskConfig, wheels ...wheeltest.Wheel) (sums []string) {
	for _, w := range wheels {
		sums = append(sums, w.Write(a.t, filepath.Join(cfg.TaskDir().LocalDir, "wheels")))
	}
	return sums
}

var moon = wheeltest.Wheel{Name: "moon-phase", Version: "1.2"}

const useMoon = "import moon_phase, sys\nprint(moon_phase.VERSION, sys.prefix)\n"

// withMoon returns a task that runs script with one requirement. The wheel moon is in local/wheels, which find_links
// names.
func (a *agent) withMoon(script, requirement string, change ...func(*drivers.TaskConfig)) *drivers.TaskConfig {
	a.t.Helper()
	cfg := a.task("script = \"app.py\"\nrequirements = [\""+requirement+"\"]\nfind_links = [\"local/wheels\"]",
		map[string]string{"app.py": script}, change...)
	a.withWheels(cfg, moon)
	return cfg
}

// uvLock returns the uv.lock of a project. The member that it also writes, for workspaces, requires an older
// sun-spots.
func uvLock(t *testing.T, index, pyproject string) string {
	t.Helper()
	dir := t.TempDir()
	must.NoError(t, os.Mkdir(filepath.Join(dir, "member"), 0o755))
	member := strings.Replace(project(`"sun-spots<2"`, ""), "shop", "member", 1)
	must.NoError(t, os.WriteFile(filepath.Join(dir, "member/pyproject.toml"), []byte(member), 0o644))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "pyproject.toml"), []byte(pyproject), 0o644))
	cmd := exec.Command(uv(t), "lock", "--python", testsupport.Python, "--no-cache", "--default-index", index)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprintf("%s", out))
	content, err := os.ReadFile(filepath.Join(dir, "uv.lock"))
	must.NoError(t, err)
	return string(content)
}

// Tasks whose wheels have the same name and version but different content must not share an environment.
func TestEnvironment_DependsOnWheelsOfTheTask(t *testing.T) {
	a := start(t)
	out := a.runs(a.withMoon(useMoon, "Moon_Phase >= 1"))
	test.StrHasPrefix(t, "1.2 "+a.dir+"/cache/", out)
	other := a.withMoon(useMoon, "Moon_Phase >= 1")
	a.withWheels(other, wheeltest.Wheel{Name: "moon-phase", Version: "1.2", Files: map[string]string{"extra.py": ""}})
	test.NotEq(t, out, a.runs(other))
}

func TestEnvironment_WorksWithPyPy(t *testing.T) {
	const pypy = "/usr/bin/pypy3"
	if _, err := os.Stat(pypy); err != nil {
		t.Skip("found no pypy3 in /usr/bin")
	}
	a := start(t, func(c *Config) { c.Interpreters = nil })
	for _, python := range []string{"pypy", "pypy>=3.8", "pypy@3"} {
		cfg := a.task("script = \"app.py\"\nrequirements = [\"moon-phase\"]\nfind_links = [\"local/wheels\"]\npython = \""+
			python+"\"", map[string]string{"app.py": useMoon + "print(sys.implementation.name)\n"})
		a.withWheels(cfg, moon)
		out := a.runs(cfg)
		test.StrHasPrefix(t, "1.2 "+a.dir+"/cache/", out)
		test.StrHasSuffix(t, "\npypy\n", out)
	}
}

// attack tries all ways to change the environment in which it runs.
const attack = `
import moon_phase, os, sys
module = moon_phase.__file__
for what, f in {
    "write": lambda: open(module, "w"),
    "append": lambda: open(module, "a"),
    "chmod": lambda: os.chmod(module, 0o666),
    "remove": lambda: os.remove(module),
    "rename": lambda: os.rename(module, module + ".x"),
    "create": lambda: open(os.path.join(os.path.dirname(module), "planted.py"), "w"),
    "link": lambda: os.symlink("/etc/passwd", os.path.join(sys.prefix, "planted")),
    "mkdir": lambda: os.mkdir(os.path.join(sys.prefix, "planted")),
    "sibling": lambda: os.mkdir(os.path.join(os.path.dirname(sys.prefix), "planted")),
    "python": lambda: os.remove(os.path.join(sys.prefix, "bin", "python3")),
}.items():
    try:
        f()
        print(what, "succeeded")
    except OSError as e:
        pass
print("tried")
`

func TestEnvironment_CannotBeChangedByATask(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t)
	for _, user := range []string{"", "nobody", "daemon", "root"} {
		want := "tried\n"
		if user == "root" {
			want = "sibling succeeded\ntried\n" // root can write outside of its environment
		}
		test.Eq(t, want, a.runs(a.withMoon(attack, "moon-phase", asUserOf(user))), test.Sprint(user))
	}
}

func TestEnvironment_IsFirstOnThePath(t *testing.T) {
	tool := wheeltest.Wheel{Name: "tool", Version: "1", Files: map[string]string{
		"tool.py": "def main():\n    import sys\n    print('tool', sys.prefix == " +
			"sys.base_prefix)\n",
		"tool-1.dist-info/entry_points.txt": "[console_scripts]\ntool = tool:main\n"}}
	a := start(t)
	cfg := a.task("script = \"app.py\"\nrequirements = [\"tool\"]\nfind_links = [\"local/wheels\"]",
		map[string]string{"app.py": "import os, subprocess, sys\nprint(os.environ['VIRTUAL_ENV'] == sys.prefix, " +
			"flush=True)\nsubprocess.run(['tool'], check=True)\n"})
	a.withWheels(cfg, tool)
	test.Eq(t, "True\ntool False\n", a.runs(cfg))
}

func TestFiles_AreReadWithTheRightsOfTheTask(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t)
	secret := filepath.Join(a.dir, "secret")
	must.NoError(t, os.WriteFile(secret, []byte("password = hunter2 -e\n"), 0o600))
	// all users may read /mnt/r.txt, but it is in another mount namespace, to which /proc/<pid>/root leads
	other := exec.Command("unshare", "--mount", "sh", "-c",
		"mount -t tmpfs none /mnt && echo password = hunter2 -e > /mnt/r.txt && echo made && exec sleep 1000")
	made, err := other.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, other.Start())
	defer func() { _, _ = other.Process.Kill(), other.Wait() }()
	_, err = io.ReadFull(made, make([]byte, 5))
	must.NoError(t, err)
	for _, config := range []string{fmt.Sprintf("requirements = \"/proc/%d/root/mnt/r.txt\"", other.Process.Pid),
		"requirements = \"local/link.txt\"", "requirements = \"" + secret + ".txt\"",
		"lock = \"local/uv.lock\"", "lock = \"link.txt\""} {
		cfg := a.task("script = \"app.py\"\nfind_links = [\"local\"]\n"+config, map[string]string{"app.py": useMoon})
		must.NoError(t, os.Symlink(secret, filepath.Join(cfg.TaskDir().LocalDir, "link.txt")))
		must.NoError(t, os.Symlink(secret, filepath.Join(cfg.TaskDir().LocalDir, "uv.lock")))
		must.NoError(t, os.RemoveAll(secret+".txt"))
		must.NoError(t, os.Symlink(secret, secret+".txt"))
		err := a.refused(cfg)
		must.StrNotContains(t, err.Error(), "hunter2", must.Sprintf("%s: %v", config, err))
		test.StrContains(t, err.Error(), "permission denied", test.Sprintf("%s: %v", config, err))
	}
}

func TestBuildUser_RunsNoTasks(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t)
	err := a.refused(a.task(`code = "1"`, nil, asUserOf("79999")))
	test.StrContains(t, err.Error(), "build_user", test.Sprint(err))
}

func TestCommand_SetsHomeForAUserWithoutAHome(t *testing.T) {
	testsupport.NeedRoot(t)
	a := start(t)
	const config = `code = "import os, pathlib\nhome = pathlib.Path.home()\n(home / '.cache').mkdir()\n` +
		`assert 'PYTHONHOME' not in os.environ\nprint(home, os.environ['XDG_CACHE_HOME'])"`
	t.Setenv("XDG_CACHE_HOME", "/root/.cache")
	t.Setenv("PYTHONHOME", "/nowhere")
	inherits := func(c *drivers.TaskConfig) { // sets variables like those that Nomad copies from the agent
		c.User, c.Env["XDG_CACHE_HOME"], c.Env["PYTHONHOME"] = "nobody", "/root/.cache", "/nowhere"
	}
	cfg := a.task(config, nil, inherits)
	home := cfg.TaskDir().Dir
	test.Eq(t, home+" "+home+"/.cache\n", a.runs(cfg))
	own := t.TempDir()
	cfg = a.task(`code = "import os\nprint(os.environ['HOME'])"`, nil, func(c *drivers.TaskConfig) { c.Env["HOME"] = own })
	test.Eq(t, own+"\n", a.runs(cfg))
}
