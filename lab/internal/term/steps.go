// Package term prints for people: steps with their outcome, and tables. On a
// terminal a step is one line that changes; elsewhere it is plain lines.
package term

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Printer prints steps. It is safe for concurrent use, but steps do not nest.
type Printer struct {
	w     io.Writer
	tty   bool
	color bool
	every time.Duration // plain mode: how often a long step gives a sign of life

	mu   sync.Mutex // guards what follows
	name string     // the step that runs; empty: none
	came time.Time
	last time.Time
}

// New prints to w; a terminal gets the moving form, with colour unless NO_COLOR
// is set (no-color.org).
func New(w io.Writer) *Printer {
	p := &Printer{w: w, every: 10 * time.Second}
	if f, ok := w.(*os.File); ok && os.Getenv("TERM") != "dumb" {
		st, err := f.Stat()
		p.tty = err == nil && st.Mode()&os.ModeCharDevice != 0 && st.Mode()&os.ModeDevice != 0
	}
	p.color = p.tty && os.Getenv("NO_COLOR") == ""
	return p
}

// Step begins a step; the function that is returned ends it, with the outcome in
// a few words. An error is shown as a failed step, the error itself is not: the
// caller returns it.
func (p *Printer) Step(format string, args ...any) (end func(err error, outcome string, args ...any)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.name = fmt.Sprintf(format, args...)
	p.came = time.Now()
	p.last = p.came
	if p.tty {
		fmt.Fprintf(p.w, " %s %s …", p.paint("36", "•"), p.name)
	}
	return p.end
}

func (p *Printer) end(err error, outcome string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := time.Since(p.came)
	mark := p.paint("32", "✓")
	plain := "ok    "
	if err != nil {
		mark, plain, outcome = p.paint("31", "✗"), "failed", ""
	}
	if outcome != "" {
		outcome = ": " + fmt.Sprintf(outcome, args...)
	}
	if p.tty {
		fmt.Fprintf(p.w, "\r\033[K %s %s%s %s\n", mark, p.name, outcome, p.paint("2", "("+Short(took)+")"))
	} else {
		fmt.Fprintf(p.w, "%s %s%s (%s)\n", plain, p.name, outcome, Short(took))
	}
	p.name = ""
}

// Progress says how the running step gets on.
func (p *Printer) Progress(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	msg := fmt.Sprintf(format, args...)
	switch {
	case p.name == "":
		fmt.Fprintf(p.w, "%s\n", msg)
	case p.tty:
		fmt.Fprintf(p.w, "\r\033[K %s %s … %s", p.paint("36", "•"), p.name, msg)
	case time.Since(p.last) >= p.every || p.last.Equal(p.came):
		p.last = time.Now()
		fmt.Fprintf(p.w, "...    %s: %s\n", p.name, msg)
	}
}

// Println prints a line, also in the middle of a step.
func (p *Printer) Println(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tty && p.name != "" {
		fmt.Fprint(p.w, "\r\033[K")
	}
	fmt.Fprintf(p.w, format+"\n", args...)
}

func (p *Printer) paint(code, s string) string {
	if !p.color {
		return s
	}
	return "\033[" + code + "m" + s + "\033[0m"
}

// Short writes a duration for people: 0.4 s, 12 s, 3 min 5 s.
func Short(d time.Duration) string {
	switch s := d.Seconds(); {
	case s < 9.95:
		return fmt.Sprintf("%.1f s", s)
	case s < 120:
		return fmt.Sprintf("%.0f s", s)
	default:
		return fmt.Sprintf("%d min %d s", int(s)/60, int(s)%60)
	}
}
