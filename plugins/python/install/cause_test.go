package install_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestTheErrorHasTheInstallersOwnWords(t *testing.T) {
	tests := []struct {
		name        string
		lines       []string
		constraints []string
		hashed      bool
		words       []string // in the error, in lower case
		pip         bool     // uv installs it all the same
		file        bool     // an index has hashes of its files, of which this is none
	}{
		{name: "a package that is not there", lines: []string{"missing-thing"}, words: []string{"missing-thing"}},
		{name: "a version that is not there", lines: []string{"app==9.0"}, words: []string{"app", "9.0"}},
		{name: "a requirement of a package that is not there", lines: []string{"orphan"}, words: []string{"nowhere"}},
		{name: "a wheel for another interpreter", lines: []string{"other-abi==1.0"}, words: []string{"other", "cpython " + system(t).Minor}},
		{name: "only sources", lines: []string{"source"}, words: []string{"source", "from wheels alone (allow_sdists)"}},
		{name: "a package for a newer Python", lines: []string{"newer"}, words: []string{"newer", "3.99"}, pip: true},
		{name: "two versions at once", lines: []string{"wants-one", "wants-two"}, words: []string{"wants-one", "wants-two"}},
		{name: "a constraint", lines: []string{"wants-two"}, constraints: []string{"app<2"}, words: []string{"app"}},
		{name: "a wheel that is none", lines: []string{"corrupt"}, words: []string{"corrupt"}},
		{name: "a file that is not the one that was locked", lines: []string{"app==1.0 --hash=sha256:" + strings.Repeat("0", 64)}, hashed: true, words: []string{"hash"}},
		{name: "a file that is not the one of the index", lines: []string{"stray"}, words: []string{"hash"}, pip: true, file: true},
	}
	wheels := func(t *testing.T, dir string) {
		wheeltest.Wheel{Name: "app", Version: "1.0"}.Write(t, dir)
		wheeltest.Wheel{Name: "app", Version: "2.0"}.Write(t, dir)
		wheeltest.Wheel{Name: "wants-one", Version: "1.0", Requires: []string{"app<2"}}.Write(t, dir)
		wheeltest.Wheel{Name: "wants-two", Version: "1.0", Requires: []string{"app>=2"}}.Write(t, dir)
		wheeltest.Wheel{Name: "orphan", Version: "1.0", Requires: []string{"nowhere"}}.Write(t, dir)
		wheeltest.Wheel{Name: "newer", Version: "1.0", Python: ">=3.99"}.Write(t, dir)
		wheeltest.Wheel{Name: "stray", Version: "1.0"}.Write(t, dir)
		wheeltest.Sdist{Name: "source", Version: "1.0"}.Write(t, dir)
		wheeltest.Wheel{Name: "other-abi", Version: "1.0"}.Write(t, dir)
		err := errors.Join(
			os.Rename(filepath.Join(dir, "other_abi-1.0-py3-none-any.whl"), filepath.Join(dir, "other_abi-1.0-cp27-cp27mu-win32.whl")),
			os.WriteFile(filepath.Join(dir, "corrupt-1.0-py3-none-any.whl"), []byte("<html>not a wheel</html>"), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range tests {
		for _, offline := range []bool{true, false} {
			name := test.name + " in an index"
			if offline {
				name = test.name + " offline"
			}
			if offline && test.file {
				continue
			}
			t.Run(name, func(t *testing.T) {
				each := tools
				if test.pip { // uv goes by what an index says of a package, which these do not, and not by its hashes
					each = pipAlone
				}
				each(t, func(t *testing.T, i install.Installer) {
					p := newPlace(t)
					wheels(t, p.wheels)
					r := p.request(t, test.lines...)
					r.Requirements.Constraints, r.Requirements.Hashed = test.constraints, test.hashed
					if !offline {
						r.Indexes = requirement.Indexes{URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
							if strings.HasSuffix(r.URL.Path, "/stray-1.0-py3-none-any.whl") {
								w.Write(wheeltest.Wheel{Name: "stray", Version: "1.0", Files: map[string]string{"more.py": ""}}.Bytes(t))
								return
							}
							wheeltest.Handler(p.wheels).ServeHTTP(w, r)
						})}
					}
					_, err := i.Install(t.Context(), r)
					var e *install.Error
					if !errors.As(err, &e) {
						t.Fatalf("the error is %v", err)
					}
					t.Log(err)
					if e.Cause != install.Unknown || e.Temporary() || len(e.Lines) == 0 || len(e.Lines) > 30 {
						t.Errorf("the cause is %v of\n%s", e.Cause, lines(err))
					}
					if e.Refused != (test.words[0] == "hash") {
						t.Errorf("another interpreter is tried or not, wrongly, after\n%s", lines(err))
					}
					text := strings.ToLower(strings.ReplaceAll(err.Error(), "_", "-"))
					for _, want := range test.words {
						if !strings.Contains(text, strings.ReplaceAll(want, "_", "-")) {
							t.Errorf("%q is not in %q\n%s", want, text, lines(err))
						}
					}
					for _, guess := range []string{"contradict", "locked"} {
						if strings.Contains(e.Words, guess) {
							t.Errorf("it guesses: %s", e.Words)
						}
					}
				})
			})
		}
	}
}

func TestAFullDiskMayBeEmptierElsewhere(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		small(t, p.dir, 24<<20)
		p.mkdirs(t)
		wheeltest.Wheel{Name: "large", Version: "1.0", Files: map[string]string{"large.bin": noise(40 << 20)}}.Write(t, p.wheels)
		_, err := i.Install(t.Context(), p.request(t, "large"))
		var e *install.Error
		if !errors.As(err, &e) || e.Cause != install.NoSpace || !e.Temporary() {
			t.Errorf("the error is %v\n%s", err, lines(err))
		}
	})
}

func TestABuildEndsWithItsContext(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		p := newPlace(t)
		r := p.request(t, "slow")
		r.Indexes = requirement.Indexes{URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-ctx.Done():
			}
		})}
		_, err := i.Install(ctx, r)
		var e *install.Error
		if !errors.As(err, &e) || e.Cause != install.TimedOut || !e.Temporary() {
			t.Errorf("the error is %v\n%s", err, lines(err))
		}
		nothingRuns(t)
	})
}

// The pip of another interpreter is first looked for.
func TestABuildThatEndsBeforePipRunsMayBeTriedAgain(t *testing.T) {
	p := newPlace(t)
	begun := filepath.Join(p.work(), "begun")
	hangs := filepath.Join(p.wheels, "python3")
	if err := os.WriteFile(hangs, []byte("#!/bin/sh\ntouch "+begun+"\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := p.request(t, "anything")
	r.Python.Pip = nil
	ctx, expire := expiring(t)
	go func() {
		defer expire()
		for t.Context().Err() == nil {
			if _, err := os.Stat(begun); err == nil {
				return
			}
			time.Sleep(10 * time.Millisecond) // nothing tells of another process's progress
		}
	}()
	_, err := install.Installer{Name: "pip", Version: "23.0.1", Python: interpreter.Interpreter{Path: hangs, Pip: []string{"-m", "pip"}}}.Install(ctx, r)
	var e *install.Error
	if !errors.As(err, &e) || e.Cause != install.TimedOut || !e.Temporary() || !strings.Contains(e.Words, "in time") {
		t.Errorf("the error is %v", err)
	}
	nothingRuns(t)
}

// expiring is a context whose deadline comes when expire is called.
func expiring(t *testing.T) (ctx context.Context, expire func()) {
	done := make(chan struct{})
	return deadline{t.Context(), done}, sync.OnceFunc(func() { close(done) })
}

type deadline struct {
	context.Context
	done chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.done }

func (d deadline) Err() error {
	select {
	case <-d.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}
