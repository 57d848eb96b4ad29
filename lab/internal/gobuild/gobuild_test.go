package gobuild

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestBuildTellsHowFarItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		b := Build{Packages: 9, Progress: func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }}
		text := &slow{lines: []string{"go: downloading a.example/b v1.0.0", "a/b", "a/c", "# a/d", "./x.go:1:2: undefined: y", "a/e"}}
		messages := b.follow(bufio.NewScanner(text))
		if want := []string{"# a/d", "./x.go:1:2: undefined: y"}; !slices.Equal(messages, want) {
			t.Errorf("messages %q, want %q", messages, want)
		}
		want := []string{"downloading a.example/b v1.0.0", "1 of at most 9 packages compiled", "2 of at most 9 packages compiled", "3 of at most 9 packages compiled"}
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// slow has a line each two seconds.
type slow struct{ lines []string }

func (s *slow) Read(p []byte) (int, error) {
	if len(s.lines) == 0 {
		return 0, errors.New("the end")
	}
	time.Sleep(Every)
	n := copy(p, s.lines[0]+"\n")
	s.lines = s.lines[1:]
	return n, nil
}

func TestInterruptedBuildEndsAtOnce(t *testing.T) {
	dir := t.TempDir()
	// a go command that ends when it is asked to
	const script = "#!/bin/sh\ntrap 'echo asked >\"$OUT\"; kill $!; exit 1' INT\nsleep 600 & wait\n"
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	out := filepath.Join(dir, "out")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	start := time.Now()
	err := Build{Env: []string{"OUT=" + out}}.Run(ctx)
	if asked, _ := os.ReadFile(out); err == nil || !strings.Contains(string(asked), "asked") || time.Since(start) > time.Minute {
		t.Errorf("%v after %s; asked: %q", err, time.Since(start), asked)
	}
}
