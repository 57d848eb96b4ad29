// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package lab

// These tests run the magefile as users do, by the mage command, because it is a separate program.

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
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/lab/build"
	"github.com/outrider-dev/outrider/lab/internal/term"
)

func TestMagefile_HasTheTargetsOfTheReadme(t *testing.T) {
	root, err := build.Root(".")
	must.NoError(t, err)
	mage := func(args ...string) (string, error) {
		cmd := exec.Command("go", append([]string{"tool", "mage"}, args...)...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "LAB_DIR="+t.TempDir()) // an empty directory: no lab is up
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	list, err := mage("-l")
	must.NoError(t, err, must.Sprintf("%v\n%s", err, list))
	for line := range strings.Lines(list) {
		n := utf8.RuneCountInString(strings.TrimRight(line, "\n"))
		test.False(t, n > term.Width, test.Sprintf("mage -l has %d columns: %s", n, line))
	}
	for _, page := range []string{"README.md", "docs/start/lab.md", "CONTRIBUTING.md"} {
		text, err := os.ReadFile(filepath.Join(root, page))
		must.NoError(t, err)
		names := regexp.MustCompile(`(?m)^go tool mage (\S+)`).FindAllStringSubmatch(string(text), -1)
		must.SliceNotEmpty(t, names, must.Sprint(page))
		for _, name := range names {
			if !regexp.MustCompile(`(?m)(^|\s)`+regexp.QuoteMeta(name[1])+`\s`).MatchString(list) && name[1] != "-l" {
				t.Errorf("%s has %s, mage -l has\n%s", page, name[1], list)
			}
		}
	}
}

func TestCommand_EndsCleanlyOnInterrupt(t *testing.T) {
	root, err := build.Root(".")
	must.NoError(t, err)
	dir := t.TempDir()
	// a nomad binary that prints its version, and then hangs
	nomad := filepath.Join(dir, "nomad")
	const script = "#!/bin/sh\n[ $1 = version ] && echo 'Nomad v1.11.3' && exit 0\n" +
		"echo half a line of the log >&2\nexec sleep 600\n"
	must.NoError(t, os.WriteFile(nomad, []byte(script), 0o755))
	lab := filepath.Join(dir, "outrider-lab")
	cmd := exec.Command("go", "tool", "mage", "lab:up")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "LAB_DIR="+dir, "NOMAD_BIN="+nomad, "LAB_RUNTIME=host", "TERM=xterm", "NO_COLOR=1")
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 100})
	must.NoError(t, err)
	defer terminal.Close()
	screen := &screen{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		var buf [4096]byte
		for {
			n, err := terminal.Read(buf[:])
			screen.Write(buf[:n])
			if err != nil { // EIO after the other end was closed
				return
			}
		}
	}()
	for end := time.Now().Add(10 * time.Minute); !strings.Contains(screen.String(),
		"Starting the agent … "); time.Sleep(50 * time.Millisecond) {
		must.False(t, time.Now().After(end), must.Sprintf("lab:up does not start the agent:\n%s", screen))
	}
	if _, err := terminal.Write([]byte{3}); err != nil { // ^C
		t.Fatal(err)
	}
	err = cmd.Wait()
	<-read
	var exit *exec.ExitError
	must.True(t, errors.As(err, &exit), must.Sprintf("lab:up ended with %v", err))
	test.NotEq(t, 0, exit.ExitCode(), test.Sprintf("lab:up ended with %v", err))
	text := strings.ReplaceAll(screen.String(), "\r\n", "\n")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	last := lines[len(lines)-1]
	test.StrHasPrefix(t, "Error: interrupted; to see what still runs: go tool mage", last, test.Sprint("the last line"))
	test.StrContains(t, lines[len(lines)-2], "- Starting the agent: interrupted", test.Sprint("the line before"))
	for _, wrong := range []string{"half a line", "cleanup", "cancelling", "context canceled"} {
		test.StrNotContains(t, text, wrong, test.Sprintf("printed: %q", wrong))
	}
	_, err = os.Stat(lab)
	test.True(t, os.IsNotExist(err), test.Sprintf("the directory of the lab still exists: %v", err))
}

// screen collects output, and can be read while a program prints.
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
