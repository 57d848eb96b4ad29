package lab

// The magefile is a program of its own: these tests use it as a user does.

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"

	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

func TestMagefile_HasTheTargetsOfTheReadme(t *testing.T) {
	root, err := build.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	mage := func(args ...string) (string, error) {
		cmd := exec.Command("go", append([]string{"tool", "mage"}, args...)...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "LAB_DIR="+t.TempDir()) // of no lab
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := mage("lab:reload", "python"); err == nil || !strings.Contains(out, `"python" is no target`) ||
		strings.Contains(out, "is not up") {
		t.Errorf("lab:reload python: %v\n%s", err, out)
	}
	list, err := mage("-l")
	if err != nil {
		t.Fatalf("%v\n%s", err, list)
	}
	for line := range strings.Lines(list) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > term.Width {
			t.Errorf("mage -l has %d columns: %s", n, line)
		}
	}
	readme, err := os.ReadFile(root + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)^go tool mage (\S+)`).FindAllStringSubmatch(string(readme), -1)
	if len(names) < 5 {
		t.Fatalf("the README has %q", names)
	}
	for _, name := range names {
		if !regexp.MustCompile(`(?m)(^|\s)`+regexp.QuoteMeta(name[1])+`\s`).MatchString(list) && name[1] != "-l" {
			t.Errorf("the README has %s, mage -l has\n%s", name[1], list)
		}
	}
}

func TestCommand_EndsInOrderOnInterrupt(t *testing.T) {
	root, err := build.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	// a nomad that says its version, and then nothing
	nomad := filepath.Join(dir, "nomad")
	const script = "#!/bin/sh\n[ $1 = version ] && echo 'Nomad v1.11.3' && exit 0\n" +
		"echo half a line of the log >&2\nexec sleep 600\n"
	if err := os.WriteFile(nomad, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	lab := filepath.Join(dir, "lab")
	cmd := exec.Command("go", "tool", "mage", "lab:up")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "LAB_DIR="+lab, "NOMAD_BIN="+nomad, "LAB_RUNTIME=host", "TERM=xterm", "NO_COLOR=1")
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	screen := &screen{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		var buf [4096]byte
		for {
			n, err := terminal.Read(buf[:])
			screen.Write(buf[:n])
			if err != nil { // EIO, where nobody has the other end any more
				return
			}
		}
	}()
	for end := time.Now().Add(10 * time.Minute); !strings.Contains(screen.String(),
		"Starting the agent … ("); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not start:\n%s", screen)
		}
	}
	if _, err := terminal.Write([]byte{3}); err != nil { // ^C
		t.Fatal(err)
	}
	err = cmd.Wait()
	<-read
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() == 0 {
		t.Errorf("it ended with %v", err)
	}
	text := strings.ReplaceAll(screen.String(), "\r\n", "\n")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "Error: interrupted; nothing is left running. Start again with: LAB_DIR="+lab) {
		t.Errorf("the last line is %q", last)
	}
	if before := lines[len(lines)-2]; !strings.Contains(before, "- Starting the agent: interrupted") {
		t.Errorf("the line before is %q", before)
	}
	for _, wrong := range []string{"half a line", "cleanup", "cancelling", "context canceled"} {
		if strings.Contains(text, wrong) {
			t.Errorf("%q in\n%s", wrong, text)
		}
	}
	if _, err := os.Stat(lab); !os.IsNotExist(err) {
		t.Errorf("something is left: %v", err)
	}
}

// screen is what was printed until now.
type screen struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
