// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
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
	test.ErrorContains(t, err, "no module e", test.Sprint("a module that is not there"))
}

func TestFindKernel_TakesAnUnpackedOne(t *testing.T) {
	dir := tree(t, map[string]string{
		"boot/vmlinuz-6.1": "", "boot/vmlinuz-6.2": "", "lib/modules/6.2/modules.dep.bin": "",
	})
	t.Setenv(kernelEnv, dir)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	k, err := findKernel(t.Context(), t.Logf)
	must.NoError(t, err, must.Sprintf("got %+v", k))
	must.Eq(t, "6.2", k.release, must.Sprintf("got %+v", k))
	must.Eq(t, filepath.Join(dir, "boot/vmlinuz-6.2"), k.image, must.Sprintf("got %+v", k))
	test.Eq(t, filepath.Join(dir, "lib/modules/6.2"), k.modules(), test.Sprintf("got %+v", k))
}

func TestFindKernel_WithoutApt(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv(kernelEnv, "")
	_, err := findKernel(t.Context(), t.Logf)
	if err == nil || !strings.Contains(err.Error(), "apt-get is missing") || !strings.Contains(err.Error(), kernelEnv) {
		t.Errorf("got %v", err)
	}
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
	test.SliceEqOp(t, []string{"tcg"}, names(), test.Sprint("after it did not work"))
	for _, only := range []string{"kvm", "tcg"} { // the user decides
		t.Setenv(accelEnv, only)
		test.SliceEqOp(t, []string{only}, names(), test.Sprint(only))
	}
}

func TestResults_AreReadFromTestEvents(t *testing.T) {
	r := newResults()
	err := r.read(strings.NewReader(`
{"Action":"start"}
{"Action":"run","Test":"TestA"}
{"Action":"output","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"run","Test":"TestA/b/c"}
{"Action":"run","Test":"TestA/b/c/d"}
{"Action":"output","Test":"TestA/b/c/d","Output":"    x_test.go:1: needs a thing\n"}
{"Action":"output","Test":"TestA/b/c/d","Output":"        --- SKIP: TestA/b/c/d (0.00s)\n"}
{"Action":"skip","Test":"TestA/b/c/d","Elapsed":0}
{"Action":"pass","Test":"TestA/b/c","Elapsed":1.5}
{"Action":"fail","Test":"TestA","Elapsed":2}
{"Action":"run","Test":"TestHangs"}
{"Action":"output","Output":"panic: no time left\n"}
{"Action":"fail","Elapsed":3}`))
	must.NoError(t, err)
	test.SliceEqOp(t, []string{"TestA", "TestA/b/c", "TestA/b/c/d", "TestHangs"}, r.order, test.Sprint("order"))
	for name, want := range map[string]string{"TestA": "fail", "TestA/b/c": "pass", "TestA/b/c/d": "skip",
		"TestHangs": ""} {
		test.Eq(t, want, r.tests[name].action, test.Sprint(name))
	}
	test.Eq(t, "    x_test.go:1: needs a thing\n", r.tests["TestA/b/c/d"].output.String(),
		test.Sprint("its output"))
	test.StrContains(t, r.own.String(), "no time left", test.Sprint("the package's own output"))
	must.True(t, r.nested("TestA", "TestA/b/c/d"),
		must.Sprint("a slash in a name is taken for a subtest, or the other way round"))
	test.False(t, r.nested("TestA", "TestA/b/c"),
		test.Sprint("a slash in a name is taken for a subtest, or the other way round"))
	test.Error(t, newResults().read(strings.NewReader("no json")), test.Sprint("what is no event is no error"))
}

func TestTail_KeepsTheLast(t *testing.T) {
	tl := newTail(nil)
	for range 3 {
		tl.Write([]byte(strings.Repeat("a", tailSize/2)))
	}
	tl.Write([]byte("the end\r\n"))
	if s := tl.String(); len(s) > tailSize || !strings.HasSuffix(s, "the end\n") {
		t.Errorf("%d bytes, ending with %q", len(s), s[len(s)-20:])
	}
}

func TestVM_IsGivenUpIfItHangs(t *testing.T) {
	v := New(t, Options{Memory: 512, CPUs: 1, silence: 4 * time.Second})
	must.NoError(t, v.machine.qmp.do("stop", nil, nil))
	begin := time.Now()
	_, err := v.Output(t.Context(), "sleep", "600")
	if err == nil || !strings.Contains(err.Error(), "has gone away") && !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("the command ended with %v", err)
	}
	took := time.Since(begin)
	test.False(t, took > 5*time.Minute, test.Sprintf("only after %v", took))
	test.NoError(t, v.Kill())
}
