package install

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

func (b *build) pipVenv() []string {
	return []string{b.Python.Path, "-I", "-m", "venv", "--without-pip", b.Dir}
}

// runner finds the pip of another place in this interpreter, and nothing else from there: what pip's
// own --python does (pip/__pip-runner__.py) since 22.3, but for any pip. runPip then runs it.
const runner = `import runpy, sys
from importlib.machinery import PathFinder
place = sys.argv.pop(1)
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [place], target) if name == "pip" else None
sys.meta_path.insert(0, Finder)
`

// noBuilds keeps pip from running code of packages, which --only-binary leaves to it where a package is named by its
// URL. Whatever the names are that a pip has for it, to build one begins with another process: it can start none but the
// loader that it asks for musl's version. A PermissionError is what it is prepared for when it looks for others, such as
// lsb_release.
const noBuilds = `import os, subprocess
start = subprocess.Popen.__init__
def refuse(*args, **options):
    raise PermissionError("building packages from source is disabled")
def only_loader(self, args, *more, **options):
    if not (isinstance(args, list) and len(args) == 1 and os.path.dirname(args[0]) == "/lib" and "/ld-musl-" in args[0]):
        refuse()
    start(self, args, *more, **options)
subprocess.Popen.__init__ = only_loader
for name in "system popen fork forkpty execv execve posix_spawn posix_spawnp".split():
    if hasattr(os, name):
        setattr(os, name, refuse)
`

const runPip = `runpy.run_module("pip", run_name="__main__", alter_sys=True)
`

func (b *build) pipInstall(ctx context.Context) ([]string, error) {
	from := b.Python
	if from.Pip == nil {
		from = b.with.Python
	}
	place, err := b.pipPlace(ctx, from)
	if err != nil {
		return nil, err
	}
	program := runner + noBuilds + runPip
	if b.AllowSdists {
		program = runner + runPip
	}
	argv := []string{filepath.Join(b.Dir, "bin/python"), "-I", "-c", program, place,
		"install", "--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--no-color", "--no-compile",
		"--retries", "2", "--timeout", "15",
		"--log", b.pipLog(),
		"-r", b.source.requirements}
	if b.Downloads == "" {
		argv = append(argv, "--no-cache-dir")
	} else {
		argv = append(argv, "--cache-dir", b.source.downloads(b.Downloads, "pip"))
	}
	if !b.AllowSdists {
		argv = append(argv, "--only-binary", ":all:")
	}
	return append(argv, b.common()...), nil
}

// pipLog is where pip tells why it leaves out a file, which it says nowhere else.
func (b *build) pipLog() string { return filepath.Join(b.Work, "pip.log") }

// pipPlace is the directory or archive that an interpreter's pip is in.
func (b *build) pipPlace(ctx context.Context, python interpreter.Interpreter) (string, error) {
	switch {
	case len(python.Pip) == 1: // ARCHIVE/pip
		return filepath.Dir(python.Pip[0]), nil
	case len(python.Pip) == 0:
		return "", errors.New("no interpreter has pip")
	}
	var out output
	err := b.run(ctx, []string{python.Path, "-I", "-c",
		"import importlib.util as u, os; print(os.path.dirname(os.path.dirname(u.find_spec('pip').origin)))"}, &out)
	out.end()
	switch {
	case ctx.Err() != nil:
		return "", b.explain(ctx, ctx.Err(), out.lines)
	case err != nil: // which may be Temporary, such as EAGAIN
		return "", fmt.Errorf("failed to find the pip of %s: %w: %s", python.Path, err, strings.Join(out.lines, "; "))
	case len(out.lines) != 1:
		return "", fmt.Errorf("failed to find the pip of %s: it answered %q", python.Path, out.lines)
	}
	return out.lines[0], nil
}
