package environment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// testDir is a directory that other users reach, too, unlike t.TempDir.
func testDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "environment-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		(&store{log: t.Logf}).removeTree(dir)
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%s is still there", dir)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// builder is who builds in tests: nobody else's number, where the test is root.
func builder() *Builder {
	if os.Geteuid() != 0 {
		return nil
	}
	return &Builder{UID: 79998, GID: 79998}
}

// takeBuilder has all builds be builder's, and leaves processes alone.
func takeBuilder() func(context.Context, func()) (*Builder, error) {
	if os.Geteuid() != 0 {
		return nil
	}
	return func(context.Context, func()) (*Builder, error) {
		b := builder()
		b.Clear, b.Release = func() error { return nil }, func() {}
		return b, nil
	}
}

func testCache(t testing.TB) *Cache {
	return Open(Config{Dir: filepath.Join(testDir(t), "cache"), Builders: takeBuilder(), Log: t.Logf})
}

// writeTree makes what a virtual environment looks like, in 10 directories.
func writeTree(dir string, files int) error {
	for i := range files {
		d := filepath.Join(dir, "lib", fmt.Sprintf("package%d", i%10))
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(d, fmt.Sprintf("module%d.py", i)), []byte("x = 1\n"), 0o644); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "activate"), nil, 0o755); err != nil {
		return err
	}
	if err := os.Symlink("activate", filepath.Join(dir, "bin", "python3")); err != nil {
		return err
	}
	return os.Symlink("lib", filepath.Join(dir, "lib64"))
}

// chownTree is what running the installer as the builder does.
func chownTree(dir string, b *Builder) error {
	if b == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, int(b.UID), int(b.GID))
	})
}

type buildFunc = func(ctx context.Context, as *Builder, dir, final, scratch, downloads string) error

func building(files int) buildFunc {
	return func(_ context.Context, as *Builder, dir, _, _, _ string) error {
		if err := writeTree(dir, files); err != nil {
			return err
		}
		return chownTree(dir, builder())
	}
}

func mustGet(t testing.TB, c *Cache, s Spec) *Environment {
	t.Helper()
	e, err := c.Get(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func mustTidy(t testing.TB, c *Cache) {
	t.Helper()
	if err := c.Tidy(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// mustBeTidy checks that nothing but whole environments is there, and how many.
func mustBeTidy(t testing.TB, c *Cache, environments int) {
	t.Helper()
	s, err := c.cfg.open()
	if err != nil {
		t.Fatal(err)
	}
	builds, err := s.names("builds")
	if err != nil || len(builds) > 0 {
		t.Errorf("builds has %v, %v", builds, err)
	}
	ids, err := s.ids("meta", "envs", "users")
	if err != nil || len(ids) != environments {
		t.Errorf("there are %v, %v instead of %d environments", ids, err, environments)
	}
	for _, id := range ids {
		if _, err := s.check(id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	names, err := s.names("meta")
	if err != nil || len(names) != environments {
		t.Errorf("meta has %v, %v", names, err)
	}
}

func TestCache_BuildsOnce(t *testing.T) {
	c := testCache(t)
	var dirs [4]string
	s := Spec{Key: "k", Downloads: true, Build: func(ctx context.Context, as *Builder, dir, final, scratch,
		downloads string) error {
		dirs = [4]string{dir, final, scratch, downloads}
		for _, d := range dirs[2:] {
			info, err := os.Stat(d)
			if err != nil {
				return err
			}
			if b := builder(); b != nil && owner(info) != b.UID {
				return fmt.Errorf("%s is not the builder's", d)
			}
		}
		if _, err := os.Lstat(dir); err == nil {
			return errors.New("dir exists")
		}
		return building(30)(ctx, as, dir, final, scratch, downloads)
	}}
	first := mustGet(t, c, s)
	if first.Hit || first.Stale != nil || first.Dir != dirs[1] || len(first.ID) != 8 || first.Size < 30*6 {
		t.Errorf("got %+v", first)
	}
	first.Release()
	first.Release()
	s.Build = nil
	second := mustGet(t, Open(c.cfg), s)
	defer second.Release()
	if !second.Hit || second.Dir != first.Dir || second.ID != first.ID || second.Size != first.Size || second.Age <= 0 {
		t.Errorf("got %+v", second)
	}
	err := filepath.WalkDir(second.Dir, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if int(owner(info)) != os.Geteuid() || d.Type()&os.ModeSymlink == 0 && info.Mode()&0o222 != 0 {
			t.Errorf("%s is %v of user %d", p, info.Mode(), owner(info))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if size, n, err := c.Usage(); size != second.Size || n != 1 || err != nil {
		t.Errorf("usage is %d, %d, %v", size, n, err)
	}
	mustBeTidy(t, c, 1)
}

func TestCache_BuildsOnceForManyTasks(t *testing.T) {
	c := testCache(t)
	var builds, waited atomic.Int32
	release := make(chan struct{})
	s := Spec{Key: "k", Waiting: func() {
		if waited.Add(1) == 19 {
			close(release) // only now may the build go on
		}
	}, Downloads: true, Build: func(ctx context.Context, as *Builder, dir, final, scratch, downloads string) error {
		builds.Add(1)
		<-release
		return building(30)(ctx, as, dir, final, scratch, downloads)
	}}
	var hits atomic.Int32
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			e, err := c.Get(t.Context(), s)
			if err != nil {
				t.Error(err)
				return
			}
			if e.Hit {
				hits.Add(1)
			}
			e.Release()
		})
	}
	all.Wait()
	if builds.Load() != 1 || hits.Load() != 19 || waited.Load() != 19 {
		t.Errorf("%d builds, %d hits, %d waited", builds.Load(), hits.Load(), waited.Load())
	}
	mustBeTidy(t, c, 1)
}

func TestEnvironment_StaysWhileATaskUsesIt(t *testing.T) {
	c := testCache(t)
	c.cfg.MaxSize = 1
	e := mustGet(t, c, Spec{Key: "k", Build: building(3)})
	mustTidy(t, c) // a task may acquire it
	state := filepath.Join(testDir(t), "task")
	if err := e.Acquire("task"); err == nil || !strings.Contains(err.Error(), "not absolute") {
		t.Errorf("got %v", err)
	}
	if err := e.Acquire(state); err != nil {
		t.Fatal(err)
	}
	mustTidy(t, c) // the task is about to start
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	e.Release()
	if err := e.Acquire(state); err == nil {
		t.Error("acquired after its release")
	}
	mustTidy(t, c)
	if _, err := os.Stat(filepath.Join(e.Dir, "lib64", "package0", "module0.py")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(state); err != nil {
		t.Fatal(err)
	}
	mustTidy(t, c)
	if _, err := os.Stat(e.Dir); err == nil {
		t.Error("it is still there")
	}
	mustBeTidy(t, c, 0)
}

func TestCache_ReplacesOrReusesAnOldEnvironment(t *testing.T) {
	c := testCache(t)
	s := Spec{Key: "k", Fresh: time.Nanosecond, Build: building(3)}
	first := mustGet(t, c, s)
	defer first.Release()
	unreachable := testError{temporary: true}
	s.Build = func(context.Context, *Builder, string, string, string, string) error { return unreachable }
	stale := mustGet(t, c, s)
	if !stale.Hit || stale.Stale != unreachable || stale.Dir != first.Dir {
		t.Errorf("got %+v", stale)
	}
	stale.Release()
	limited := deadline{t.Context(), make(chan struct{})}
	s.Build = func(ctx context.Context, _ *Builder, _, _, _, _ string) error {
		close(limited.over)
		<-ctx.Done()
		return ctx.Err()
	}
	late, err := c.Get(limited, s)
	if err != nil || !errors.Is(late.Stale, context.DeadlineExceeded) || late.Dir != first.Dir {
		t.Fatalf("got %+v, %v", late, err)
	}
	late.Release()
	ctx, cancel := context.WithCancel(t.Context())
	s.Build = func(context.Context, *Builder, string, string, string, string) error { cancel(); return unreachable }
	if _, err := c.Get(ctx, s); err != unreachable {
		t.Errorf("got %v of one that nobody waits for any more", err)
	}
	s.Build = func(context.Context, *Builder, string, string, string, string) error { return testError{} }
	if _, err := c.Get(t.Context(), s); err != (testError{}) {
		t.Errorf("got %v", err)
	}
	s.Build = building(4)
	second := mustGet(t, c, s)
	second.Release()
	if second.Hit || second.Dir == first.Dir || second.ID != first.ID {
		t.Errorf("got %+v", second)
	}
	mustTidy(t, c)
	if _, err := os.Stat(first.Dir); err != nil {
		t.Error("the old one went while it was used")
	}
	first.Release()
	mustTidy(t, c)
	mustBeTidy(t, c, 1)
}

// deadline is a context whose time is over when over is closed.
type deadline struct {
	context.Context
	over chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.over }

func (d deadline) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestEnvironment_OfTheFutureIsOutdated(t *testing.T) {
	for _, c := range []struct {
		age, limit time.Duration
		want       bool
	}{
		{time.Hour, 0, true},
		{-time.Hour, 0, true},
		{time.Hour, 2 * time.Hour, true},
		{2 * time.Hour, time.Hour, false},
		{-time.Second, time.Hour, true},
		{-2 * time.Hour, time.Hour, false},
	} {
		if got := (&Environment{Age: c.age}).isFresh(&Spec{Fresh: c.limit}); got != c.want {
			t.Errorf("built %v ago, good for %v: got %v", c.age, c.limit, got)
		}
	}
}

type testError struct{ temporary bool }

func (e testError) Error() string   { return fmt.Sprintf("the test's error, temporary %v", e.temporary) }
func (e testError) Temporary() bool { return e.temporary }

func TestCache_IsPatientAfterAFailure(t *testing.T) {
	cfg := testCache(t).cfg
	cfg.Patience = time.Hour
	c := Open(cfg)
	s := Spec{Key: "k", Fresh: time.Nanosecond, Build: building(3)}
	mustGet(t, c, s).Release()
	tries := 0
	s.Build = func(context.Context, *Builder, string, string, string, string) error {
		tries++
		return testError{temporary: true}
	}
	for range 3 {
		e := mustGet(t, c, s)
		if e.Stale == nil {
			t.Errorf("got %+v", e)
		}
		e.Release()
	}
	if tries != 1 {
		t.Errorf("it was tried %d times", tries)
	}
	c.cfg.Patience = 0
	mustGet(t, c, s).Release()
	if tries != 2 {
		t.Errorf("it was tried %d times", tries)
	}
}
