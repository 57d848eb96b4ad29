package vm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range got {
		got[i] = filepath.Base(p)
	}
	if want := []string{"c.ko", "b-b.ko.xz", "a.ko", "d.ko"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := dependencies(k, []string{"e"}); err == nil || !strings.Contains(err.Error(), "no module e") {
		t.Errorf("a module that is not there: %v", err)
	}
}

func TestFindKernel_TakesAnUnpackedOne(t *testing.T) {
	dir := tree(t, map[string]string{
		"boot/vmlinuz-6.1": "", "boot/vmlinuz-6.2": "", "lib/modules/6.2/modules.dep.bin": "",
	})
	t.Setenv(kernelEnv, dir)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	k, err := findKernel(t.Context(), t.Logf)
	if err != nil || k.release != "6.2" || k.image != filepath.Join(dir, "boot/vmlinuz-6.2") ||
		k.modules() != filepath.Join(dir, "lib/modules/6.2") {
		t.Errorf("got %+v, %v", k, err)
	}
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
		if err := os.MkdirAll(filepath.Dir(verdictPath()), 0o755); err != nil {
			t.Fatal(err)
		}
		first.remember()
	}
	if got := names(); !slices.Equal(got, []string{"tcg"}) {
		t.Errorf("after it did not work: %q", got)
	}
	for _, only := range []string{"kvm", "tcg"} { // the user decides
		t.Setenv(accelEnv, only)
		if got := names(); !slices.Equal(got, []string{only}) {
			t.Errorf("%s: %q", only, got)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"TestA", "TestA/b/c", "TestA/b/c/d", "TestHangs"}; !slices.Equal(r.order, want) {
		t.Errorf("order %q, want %q", r.order, want)
	}
	for name, want := range map[string]string{"TestA": "fail", "TestA/b/c": "pass", "TestA/b/c/d": "skip",
		"TestHangs": ""} {
		if got := r.tests[name].action; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := r.tests["TestA/b/c/d"].output.String(); got != "    x_test.go:1: needs a thing\n" {
		t.Errorf("its output: %q", got)
	}
	if got := r.own.String(); !strings.Contains(got, "no time left") {
		t.Errorf("the package's own output: %q", got)
	}
	if !r.nested("TestA", "TestA/b/c/d") || r.nested("TestA", "TestA/b/c") {
		t.Error("a slash in a name is taken for a subtest, or the other way round")
	}
	if err := newResults().read(strings.NewReader("no json")); err == nil {
		t.Error("what is no event is no error")
	}
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
	if err := v.machine.qmp.do("stop", nil, nil); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	_, err := v.Output(t.Context(), "sleep", "600")
	if err == nil || !strings.Contains(err.Error(), "has gone away") && !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("the command ended with %v", err)
	}
	if took := time.Since(begin); took > 5*time.Minute {
		t.Errorf("only after %v", took)
	}
	if err := v.Kill(); err != nil {
		t.Error(err)
	}
}
