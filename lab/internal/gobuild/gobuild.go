// Package gobuild runs the go command's builds, which are silent for minutes where its cache
// is empty.
package gobuild

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Every is how often a build tells of itself.
const Every = 2 * time.Second

// Build is one `go build`.
type Build struct {
	Dir      string
	Env      []string                         // beside this process's
	Args     []string                         // after "build"
	Packages int                              // how many it compiles at most, where that is known
	Progress func(format string, args ...any) // hears every now and then how far it is; may be nil
}

// Run builds. The error has what the compiler said. At the context's end the go command is
// asked to end, as by ^C: its compilers end with it.
func (b Build) Run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-v"}, b.Args...)...)
	cmd.Dir = b.Dir
	cmd.Env = append(os.Environ(), b.Env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	stderr, err := cmd.StderrPipe() // -v names each package there as it is compiled
	if err != nil {
		return err
	}
	cmd.Stdout = cmd.Stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("failed to run the go command: %w", err)
	}
	messages := b.follow(bufio.NewScanner(stderr))
	if err := cmd.Wait(); err != nil {
		return errors.Join(err, errors.New(strings.Join(messages, "\n")))
	}
	return nil
}

// follow reads what the go command prints to its end, and returns what is not progress.
func (b Build) follow(lines *bufio.Scanner) (messages []string) {
	compiled := 0
	last := time.Now()
	for lines.Scan() {
		line := lines.Text()
		doing := ""
		switch {
		case strings.HasPrefix(line, "go: downloading "):
			doing = strings.TrimPrefix(line, "go: ")
		case strings.ContainsAny(line, " #\t"):
			messages = append(messages, line)
			continue
		default:
			compiled++
			doing = fmt.Sprintf("%d packages compiled", compiled)
			if b.Packages > 0 {
				doing = fmt.Sprintf("%d of at most %d packages compiled", compiled, b.Packages)
			}
		}
		if b.Progress != nil && time.Since(last) >= Every {
			last = time.Now()
			b.Progress("%s", doing)
		}
	}
	return messages
}
