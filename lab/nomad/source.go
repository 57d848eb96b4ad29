package nomad

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// sourceMod and sourceSum are the module that builds Nomad: it has no code of
// its own, requires the pinned release, repeats the replacements of Nomad's own
// go.mod (they do not reach a dependent module), and pins every checksum.
//
//go:embed source/go.mod.txt
var sourceMod []byte

//go:embed source/go.sum.txt
var sourceSum []byte

// sourcePackages is how many packages the build compiles with an empty cache.
const sourcePackages = 1650

// buildSource builds Nomad with its web UI to dst: minutes with an empty Go
// build cache, about one minute otherwise.
func buildSource(ctx context.Context, dst string, progress Progress) error {
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("failed to find the go command: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(dst), "nomad-build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for name, content := range map[string][]byte{"go.mod": sourceMod, "go.sum": sourceSum} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}

	out := filepath.Join(dir, "nomad")
	cmd := exec.CommandContext(ctx, "go", "build", "-v", "-trimpath", "-buildvcs=false",
		"-tags", "release ui", "-ldflags", "-s -w", "-o", out, "github.com/hashicorp/nomad")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly", "GOOS=", "GOARCH=")
	stderr, err := cmd.StderrPipe() // -v names each package on stderr as it is compiled
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}

	var compiled atomic.Int64
	stop := report(progress, &compiled)
	var messages bytes.Buffer
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "go: "), strings.Contains(line, " "), strings.HasPrefix(line, "#"):
			fmt.Fprintln(&messages, line)
		default:
			compiled.Add(1)
		}
	}
	err = cmd.Wait()
	stop()
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, tail(messages.String(), 20))
	}
	return os.Rename(out, dst)
}

// report says every few seconds that the build goes on; the returned function
// ends it and waits for its end.
func report(progress Progress, compiled *atomic.Int64) (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		start := time.Now()
		tick := time.NewTicker(2 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				progress.say("building Nomad %s from source: %d of at most %d packages compiled, %d s",
					Version, compiled.Load(), sourcePackages, int(time.Since(start).Seconds()))
			}
		}
	}()
	return func() { close(quit); <-done }
}

// tail returns the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}
