package check

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"github.com/outrider-dev/outrider/lab/agent"
	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/uv"
)

//go:embed skips.txt
var skipList string

// skip is a test that may be skipped where its condition holds.
type skip struct {
	pkg  string         // end of the package path
	test *regexp.Regexp // of the whole test name; nil is the package, which is not run
	when func() bool
	why  string
}

// wholePackage stands for the test where a package is left out.
const wholePackage = "-"

// conditions are what a machine may lack for a test.
var conditions = map[string]func() bool{
	"not-root":       func() bool { return os.Geteuid() != 0 },
	"agent-not-root": func() bool { return !agent.Privileged() },
	"no-memory-cgroup": func() bool {
		return !agent.Privileged() || !exists("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/cgroup.controllers")
	},
	"no-cgroup-v1": func() bool { return !exists("/sys/fs/cgroup/*/cgroup.clone_children", "/sys/fs/cgroup/memory/tasks") },
	"no-cgroup-v2": func() bool {
		return !exists("/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/unified/cgroup.controllers")
	},
	"no-docker": func() bool { return !exists("/var/run/docker.sock") && os.Getenv("DOCKER_HOST") == "" },
	"no-fuse":   func() bool { return !exists("/dev/fuse") },
	"no-libusb": func() bool { return build.Builder{Root: "."}.Libusb(context.Background()) != nil },
	"no-umockdev": func() bool {
		return !exists("/usr/lib*/libumockdev-preload.so.0", "/usr/lib/*/libumockdev-preload.so.0")
	},
	"no-qemu": func() bool { return !onPath("qemu-system-x86_64") },
	"no-uv": func() bool {
		if os.Geteuid() != 0 {
			return uv.Find(nil) == ""
		}
		return uv.Find(&syscall.Credential{Uid: 79999, Gid: 79999}) == "" // build_user's default, who may not reach root's own
	},
	"no-user-namespaces": func() bool {
		cmd := exec.Command("unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/tmp")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return cmd.Run() != nil
	},
	"no-pypy": func() bool { return !exists("/usr/bin/pypy3") },
	"no-pip":  func() bool { return exec.Command("/usr/bin/python3", "-I", "-m", "pip", "--version").Run() != nil },
	"no-python311": func() bool {
		return exec.Command("/usr/bin/python3", "-I", "-c", "import sys; sys.exit(sys.version_info < (3, 11))").Run() != nil
	},
	"no-rich": func() bool { return exec.Command("/usr/bin/python3", "-c", "import click, rich").Run() != nil },
	"any":     func() bool { return true },
}

func onPath(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

func exists(globs ...string) bool {
	for _, g := range globs {
		if found, err := filepath.Glob(g); err == nil && len(found) > 0 {
			return true
		}
	}
	return false
}

// skips reads skips.txt.
func skips() ([]skip, error) { return parseSkips(skipList) }

// parseSkips reads lines of "package test condition # reason".
func parseSkips(text string) ([]skip, error) {
	var list []skip
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		spec, why, _ := strings.Cut(line, "#")
		f := strings.Fields(spec)
		if len(f) != 3 || strings.TrimSpace(why) == "" {
			return nil, fmt.Errorf("skips.txt line %d: want: package test condition # reason", n)
		}
		var re *regexp.Regexp
		if f[1] != wholePackage {
			var err error
			if re, err = regexp.Compile("^(?:" + f[1] + ")$"); err != nil {
				return nil, fmt.Errorf("skips.txt line %d: %w", n, err)
			}
		}
		when, ok := conditions[f[2]]
		if !ok {
			return nil, fmt.Errorf("skips.txt line %d: unknown condition %q", n, f[2])
		}
		list = append(list, skip{pkg: f[0], test: re, when: when, why: strings.TrimSpace(why)})
	}
	return list, nil
}

func allows(list []skip, pkg, test string) bool {
	for _, s := range list {
		if s.in(pkg) && s.test != nil && s.test.MatchString(test) && s.when() {
			return true
		}
	}
	return false
}

func (s skip) in(pkg string) bool { return pkg == s.pkg || strings.HasSuffix(pkg, "/"+s.pkg) }

// leavesOut says why a package is not run here, empty where it is.
func leavesOut(list []skip, pkg string) string {
	for _, s := range list {
		if s.in(pkg) && s.test == nil && s.when() {
			return s.why
		}
	}
	return ""
}
