// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package term

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

var seconds = regexp.MustCompile(`\d+\.\d s`)

// run makes a step of each kind and returns what was printed.
func run(p *Printer, b *bytes.Buffer) string {
	end := p.Step("Building %s", "it")
	p.Progress("%d of 2", 1)
	end(nil, "%d files", 2)
	end = p.Step("Starting it")
	end(errors.New("no"), "not shown")
	return seconds.ReplaceAllString(b.String(), "N s")
}

func terminal(w io.Writer) *Printer {
	p := New(w)
	p.tty = true
	return p
}

func TestPrinter_PrintsPlainLinesWithoutATerminal(t *testing.T) {
	var b bytes.Buffer
	got := run(New(&b), &b)
	want := "ok     Building it: 2 files (N s)\n" +
		"failed Starting it (N s)\n"
	test.Eq(t, want, got, test.Sprintf("got\n%swant", got))
}

func TestPrinter_MarksStepsOnATerminal(t *testing.T) {
	var b bytes.Buffer
	got := run(terminal(&b), &b)
	for _, want := range []string{" • Building it …", "\r\033[K ✓ Building it: 2 files (N s)\n",
		"\r\033[K ✗ Starting it (N s)\n"} {
		test.StrContains(t, got, want)
	}
	test.StrNotContains(t, got, "\033[3", test.Sprint("unexpected colour"))
}

func TestPrinter_ShowsThatASilentStepStillRuns(t *testing.T) {
	for _, tty := range []bool{false, true} {
		var b locked
		p := New(&b)
		p.tty, p.first, p.every = tty, 10*time.Millisecond, time.Millisecond
		end := p.Step("Building")
		for end := time.Now().Add(time.Minute); strings.Count(b.String(), "Building") < 3; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("on a terminal %v: %q", tty, b.String())
			}
		}
		end(nil, "")
		done := b.String()
		if time.Sleep(20 * time.Millisecond); b.String() != done {
			t.Errorf("on a terminal %v: the step is shown after its end", tty)
		}
	}
}

func TestPrinter_ShowsProgressOfALongStep(t *testing.T) {
	var b locked
	p := New(&b)
	p.first = 20 * time.Millisecond
	end := p.Step("Waiting")
	p.Progress("for it")
	test.Eq(t, "", b.String(), test.Sprint("immediately"))
	for end := time.Now().Add(time.Minute); !strings.Contains(b.String(),
		"Waiting: for it"); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %q", b.String())
		}
	}
	end(nil, "")
}

func TestPrinter_ShowsAnInterruptedStepAsEnded(t *testing.T) {
	var b bytes.Buffer
	New(&b).Step("Building")(fmt.Errorf("compile: %w", context.Canceled), "")
	test.Eq(t, "ended  Building: interrupted (N s)\n", seconds.ReplaceAllString(b.String(), "N s"))
}

// locked is a buffer that is safe for concurrent use.
type locked struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestShort_RoundsDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		420 * time.Millisecond: "0.4 s", 12 * time.Second: "12 s", 185 * time.Second: "3 min 5 s",
	} {
		test.Eq(t, want, Short(d), test.Sprint(d))
	}
}

func TestTable_WritesOneLinePerRow(t *testing.T) {
	var b bytes.Buffer
	must.NoError(t, Table(&b, []string{"NAME", "VERSION", "MESSAGE"}, []string{"exec-lite", "", "two\nlines"}))
	want := "NAME       VERSION  MESSAGE\nexec-lite  -        two lines\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}

func TestLines_DoesNotMixWriters(t *testing.T) {
	var b bytes.Buffer
	l := NewLines(&b)
	var wg sync.WaitGroup
	for _, label := range []string{"a", "b"} {
		wg.Go(func() {
			w := l.Writer(label)
			for range 100 {
				w.Write([]byte("half "))
				w.Write([]byte("line\nhalf "))
				w.Write([]byte("again\n"))
			}
			w.Write([]byte("rest"))
			w.Close()
		})
	}
	wg.Wait()
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	test.SliceLen(t, 2*201, lines, test.Sprintf("%d lines", len(lines)))
	ok := regexp.MustCompile(`^[ab] \| (half line|half again|rest)$`)
	for _, line := range lines {
		test.True(t, ok.MatchString(line), test.Sprintf("broken line %q", line))
	}
}
