// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/internal/cache"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

func TestDependencies_ComeFirst(t *testing.T) {
	k := kernel{release: "6", dir: tree(t, map[string]string{
		"lib/modules/6/modules.dep": "kernel/a.ko: kernel/b-b.ko.xz kernel/c.ko\n" +
			"kernel/b-b.ko.xz: kernel/c.ko\nkernel/c.ko:\nkernel/d.ko: kernel/c.ko\n",
		"lib/modules/6/modules.builtin": "kernel/built-in.ko\n",
	})}
	got, err := dependencies(k, []string{"a", "built_in", "d", "b_b"})
	must.NoError(t, err)
	for i, p := range got {
		got[i] = filepath.Base(p)
	}
	test.SliceEqOp(t, []string{"c.ko", "b-b.ko.xz", "a.ko", "d.ko"}, got)
	_, err = dependencies(k, []string{"e"})
	test.ErrorContains(t, err, "no module e", test.Sprint("a missing module"))
}

func TestUnpacked_FindsTheKernelWithModules(t *testing.T) {
	dir := tree(t, map[string]string{
		"boot/vmlinuz-6.1": "", "boot/vmlinuz-6.2": "", "lib/modules/6.2/modules.dep.bin": "",
	})
	k, err := unpacked(dir)
	must.NoError(t, err)
	must.Eq(t, "6.2", k.release)
	must.Eq(t, filepath.Join(dir, "boot/vmlinuz-6.2"), k.image)
	test.Eq(t, filepath.Join(dir, "lib/modules/6.2"), k.modules())
	_, err = unpacked(t.TempDir())
	test.ErrorContains(t, err, "want boot/vmlinuz-VERSION and lib/modules/VERSION")
}

func TestFindKernel_ReportsAMissingApt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	_, err := findKernel(t.Context(), t.Logf)
	test.ErrorContains(t, err, "apt-get is missing")
}

func TestFindZFS_ReportsMissingPackagesAndPrograms(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	find := func(t *testing.T, want string) {
		t.Helper()
		_, err := findZFS(t.Context(), kernel{release: "6.1.0-none"}, t.Logf)
		test.ErrorContains(t, err, want)
		dir, err := cache.Dir()
		must.NoError(t, err)
		left, err := filepath.Glob(filepath.Join(dir, ".new-*"))
		must.NoError(t, err)
		test.SliceEmpty(t, left, test.Sprint("left after a failure"))
	}
	t.Run("packages", func(t *testing.T) {
		testsupport.NeedPrograms(t, "gcc", "make", "strip")
		find(t, "failed to build OpenZFS for the VM's kernel: exit status 1: ")
		find(t, "apt has no headers for kernel 6.1.0-none: if a newer kernel exists, remove the old one from the cache")
	})
	t.Run("programs", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		find(t, " is missing (apt-get install ")
	})
}

func TestAccelerators_RememberABrokenKVMUntilTheNextBoot(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	names := func() (n []string) {
		for _, a := range accelerators() {
			n = append(n, a.name)
		}
		return n
	}
	t.Setenv(accelEnv, "")
	if first := accelerators()[0]; first.name == "kvm" {
		must.NoError(t, os.MkdirAll(filepath.Dir(verdictPath()), 0o755))
		first.remember()
	}
	test.SliceEqOp(t, []string{"tcg"}, names(), test.Sprint("after KVM did not work"))
	for _, only := range []string{"kvm", "tcg"} { // the variable overrides the remembered failure
		t.Setenv(accelEnv, only)
		test.SliceEqOp(t, []string{only}, names(), test.Sprint(only))
	}
}

func TestTail_KeepsTheLastBytes(t *testing.T) {
	tl := &tail{}
	for range 3 {
		tl.Write([]byte(strings.Repeat("a", tailSize/2)))
	}
	tl.Write([]byte("the end\r\n"))
	if s := tl.String(); len(s) > tailSize || !strings.HasSuffix(s, "the end\n") {
		t.Errorf("%d bytes, ending with %q", len(s), s[len(s)-20:])
	}
}

func TestVM_IsKilledIfItDoesNotAnswer(t *testing.T) {
	testsupport.Long(t, "boots a virtual machine")
	v, err := Start(t.Context(), Options{Silence: 20 * time.Second})
	must.NoError(t, err)
	must.NoError(t, v.Run(t.Context(), Cmd{Args: []string{"sleep", "30"}}))
	must.NoError(t, v.machine.cmd.Process.Signal(syscall.SIGSTOP))
	err = v.Run(t.Context(), Cmd{Args: []string{"true"}})
	test.ErrorContains(t, err, "has not answered for 20s")
	test.NoError(t, v.Close())
}
