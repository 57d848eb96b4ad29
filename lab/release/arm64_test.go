// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package release

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// TestARM64_RunsUnderQEMU runs the arm64 binaries of the release on another architecture, in QEMU's user mode.
func TestARM64_RunsUnderQEMU(t *testing.T) {
	testsupport.Long(t, "builds for another architecture, and emulates it")
	if _, err := os.Stat(qemu); err != nil {
		t.Skip(err)
	}
	dir := shortDir(t)
	each(t, func(t *testing.T, r Result, arch string, zip archive) {
		if arch != "arm64" {
			return
		}
		kind := r.Plugin.Binary
		binary := filepath.Join(dir, kind)
		must.NoError(t, os.WriteFile(binary, zip.files[kind], 0o755))
		output := func(args ...string) string {
			out, err := exec.Command(qemu, append([]string{binary}, args...)...).CombinedOutput()
			must.NoError(t, err, must.Sprintf("%s %q: %s", binary, args, out))
			return string(out)
		}
		test.StrHasPrefix(t, kind+" "+version+"\n", output("version"))
		pages := documented(t, r.Plugin.Name)
		rows := regexp.MustCompile("(?m)^\\| `.*$").FindAllString(output("options"), -1)
		must.SliceNotEmpty(t, rows, must.Sprint(kind))
		for _, row := range rows {
			test.True(t, strings.Contains(pages, row), test.Sprintf("no option of %s: %s", kind, row))
		}
	})
	driver := filepath.Join(dir, "nomad-driver-exec-lite")
	t.Run("task", func(t *testing.T) { conforms(t, driver) })
}

// documented returns the pages with a plugin's options: its own, and exec-lite's reference, which has every driver's.
func documented(t *testing.T, plugin string) (text string) {
	for _, page := range []string{"plugins/" + plugin, "reference/" + plugin, "reference/exec-lite"} {
		b, err := os.ReadFile(filepath.Join(made.root, "docs", page+".md"))
		if !errors.Is(err, fs.ErrNotExist) {
			must.NoError(t, err)
		}
		text += string(b)
	}
	return text
}

// conforms runs some conformance cases on an arm64 driver, in a user namespace with its own binfmt_misc, so this
// machine does not change. The cases run without a v2 cgroup, because QEMU can't clone into one.
func conforms(t *testing.T, driver string) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if v1, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.clone_children"); len(v1) == 0 {
		t.Skip("QEMU's user mode can neither clone into a cgroup of v2 nor become a subreaper")
	}
	dir := shortDir(t)
	build := exec.Command("go", "build", "-o", dir, "github.com/outrider-dev/outrider/internal/core/cmd/conformance")
	out, err := build.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	self, err := os.ReadFile("/proc/self/exe")
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(filepath.Join(dir, interpreter), self, 0o755))
	const script = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
if [ -d /sys/fs/cgroup/unified ]; then mount -t tmpfs none /sys/fs/cgroup/unified; fi
printf %s ':arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:'\
'\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"$1/qemuexec:OPF" \
  >/proc/sys/fs/binfmt_misc/register
exec "$1/conformance" -only "$2" "$3"
`
	const cases = "an exit code is reported|output of both streams|in the cgroup that Nomad|" +
		"StopTask sends the job's signal|a task outlives a plugin that is killed|ExecTask runs in the task"
	cmd := exec.Command("/bin/sh", "-c", script, "sh", dir, cases, driver)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	all := []syscall.SysProcIDMap{{Size: 1<<32 - 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true, Pdeathsig: syscall.SIGKILL,
	}
	out, err = cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	test.Len(t, 7, regexp.MustCompile(`(?m)^passed `).FindAll(out, -1), test.Sprint(string(out)))
	t.Log(string(out))
}

// shortDir returns a directory that any user can enter. Its path is short: a socket's path has at most 107 bytes.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "arm64-")
	must.NoError(t, err)
	must.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { test.NoError(t, os.RemoveAll(dir)) })
	return dir
}
