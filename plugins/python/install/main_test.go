package install_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

// system is this machine's best interpreter that has pip, and that builders can run.
func system(t testing.TB) interpreter.Interpreter {
	t.Helper()
	python, err := findSystem()
	if err != nil {
		t.Skip(err)
	}
	return python
}

var findSystem = sync.OnceValues(func() (interpreter.Interpreter, error) {
	finder := &interpreter.Finder{As: builder()}
	found, err := finder.Find(context.Background())
	for range 3 { // a machine with much to do gives them the time only then
		if err == nil && len(finder.Late()) > 0 {
			found, err = finder.Renew(context.Background())
		}
	}
	if err != nil {
		return interpreter.Interpreter{}, err
	}
	for _, i := range found {
		if i.Pip != nil && i.Implementation == "cpython" && !i.FreeThreaded {
			return i, nil
		}
	}
	return interpreter.Interpreter{}, fmt.Errorf("no interpreter with pip is here: %d were found, %q are none", len(found), finder.Rejected())
})

// builder is a user for installers, and of this run of the tests alone; none where the test is not root. The
// number is among those that systemd leaves to nobody (its "Users, Groups, UIDs and GIDs"), and no process's is larger than 1<<22.
func builder() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	id := uint32(1_900_000_000 + os.Getpid())
	return &syscall.Credential{Uid: id, Gid: id}
}

// tools runs a test with each installer.
func tools(t *testing.T, test func(t *testing.T, i install.Installer)) {
	pipAlone(t, test)
	t.Run("uv", func(t *testing.T) { test(t, uv(t)) })
}

func pipAlone(t *testing.T, test func(t *testing.T, i install.Installer)) {
	t.Run("pip", func(t *testing.T) { test(t, pip(t)) })
}

func pip(t testing.TB) install.Installer {
	i, err := install.Find(t.Context(), "pip", "", builder(), []interpreter.Interpreter{system(t)})
	if err != nil {
		t.Skip(err)
	}
	return i
}

func uv(t testing.TB) install.Installer {
	i, err := install.Find(t.Context(), "uv", wheeltest.UV(t, builder()), builder(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// place is a directory of the builder for one environment, and one beside it that holds what others may read.
type place struct{ dir, wheels string }

func newPlace(t testing.TB) place {
	t.Helper()
	// Not t.TempDir, whose parent no other user may enter.
	top, err := os.MkdirTemp("", "install-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(top); err != nil {
			t.Error(err)
		}
	})
	p := place{filepath.Join(top, "build"), filepath.Join(top, "wheels")}
	for _, dir := range []string{top, p.dir, p.wheels, p.work(), p.downloads()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if as := builder(); as != nil {
		for _, dir := range []string{p.dir, p.work(), p.downloads()} {
			if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return p
}

func (p place) env() string       { return filepath.Join(p.dir, "new") }
func (p place) final() string     { return filepath.Join(p.dir, "final") }
func (p place) work() string      { return filepath.Join(p.dir, "work") }
func (p place) downloads() string { return filepath.Join(p.dir, "downloads") }

// request is an environment of the wheels beside it, without an index.
func (p place) request(t testing.TB, lines ...string) install.Request {
	return install.Request{
		Python:       system(t),
		Requirements: &requirement.Set{Lines: lines},
		Indexes:      requirement.Indexes{FindLinks: []string{p.wheels}, Offline: true},
		Dir:          p.env(), Final: p.final(), Work: p.work(), Downloads: p.downloads(),
		As:       builder(),
		Progress: func(words string) { t.Logf("progress: %s", words) },
	}
}

// must installs, moves the environment to its final place, and returns its interpreter there.
func must(t testing.TB, i install.Installer, r install.Request) (*install.Result, string) {
	t.Helper()
	result, err := i.Install(t.Context(), r)
	if err != nil {
		t.Fatalf("%v\n%s", err, lines(err))
	}
	if err := os.Rename(r.Dir, r.Final); err != nil {
		t.Fatal(err)
	}
	return result, filepath.Join(r.Final, "bin/python")
}

func lines(err error) (text string) {
	if e, ok := err.(*install.Error); ok {
		for _, line := range e.Lines {
			text += line + "\n"
		}
	}
	return text
}

// hello is a wheel with a program of its own, hello, that requires another.
func hello(t testing.TB, dir string) {
	wheeltest.Wheel{Name: "greeting-words", Version: "1.0"}.Write(t, dir)
	wheeltest.Wheel{Name: "hello-world", Version: "2.0", Requires: []string{"greeting-words>=1"}, Files: map[string]string{
		"hello_world.py": "import greeting_words\nVERSION = '2.0'\ndef main():\n    print('hello', greeting_words.VERSION)\ndef fail():\n    raise ValueError('no')\n",
		"hello_world-2.0.dist-info/entry_points.txt": "[console_scripts]\nhello = hello_world:main\n",
	}}.Write(t, dir)
}

// mkdirs makes the builder's directories anew.
func (p place) mkdirs(t testing.TB) {
	t.Helper()
	for _, dir := range []string{p.work(), p.downloads()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if as := builder(); as != nil {
			if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// small makes a directory a file system of so many bytes, until the test ends.
func small(t testing.TB, dir string, size int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", size)); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chown(dir, int(builder().Uid), int(builder().Gid)); err != nil {
		t.Fatal(err)
	}
}

// noise can't be compressed.
func noise(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return string(b)
}

// nothingRuns checks that the builder has no process.
func nothingRuns(t testing.TB) {
	t.Helper()
	if builder() == nil {
		return
	}
	found := builders(t)
	for deadline := time.Now().Add(time.Minute); len(found) > 0 && time.Now().Before(deadline); found = builders(t) {
		time.Sleep(10 * time.Millisecond) // nothing tells of the end of another's child
	}
	if len(found) > 0 {
		t.Errorf("these processes are left: %q", found)
	}
}

// builders are the processes of the builder.
func builders(t testing.TB) (argvs []string) {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil || info.Sys().(*syscall.Stat_t).Uid != builder().Uid {
			continue
		}
		if argv, _ := os.ReadFile(dir + "/cmdline"); len(argv) > 0 {
			argvs = append(argvs, string(argv))
		}
	}
	return argvs
}
