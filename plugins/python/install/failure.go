// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// Error is a failure of uv.
type Error struct {
	Words string   // one sentence for the job's author
	Lines []string // uv's last lines, without credentials

	tool      string // "uv 0.8.13"
	cause     error  // of the context that ended
	temporary bool
}

func (e *Error) Error() string { return e.Words + e.LastLines() }

func (e *Error) Unwrap() error { return e.cause }

// Temporary reports whether the same may succeed later or elsewhere.
func (e *Error) Temporary() bool { return e.temporary }

// LastLines are uv's, to follow other words; "" without any.
func (e *Error) LastLines() string {
	if len(e.Lines) == 0 {
		return ""
	}
	text := strings.Join(strings.Fields(strings.Join(e.Lines, " ")), " ") // events of Nomad have one line
	return fmt.Sprintf(" (the last lines of %s: %s)", e.tool, cut(text, 800))
}

// explain returns an *Error with the last lines of uv, which failed with err. It tells what may pass.
func (b *build) explain(ctx context.Context, err error, lines []string) error {
	if len(lines) == 0 {
		lines = []string{err.Error()}
	}
	for n, line := range lines {
		lines[n] = strings.ReplaceAll(line, b.Work+"/", "") // it is removed with the build
	}
	e := &Error{Lines: lines, tool: b.with.String(), temporary: true}
	if ctx.Err() != nil {
		e.Words, e.cause = "the environment was not built in time", ctx.Err()
		return e
	}
	if isFull(lines) {
		e.Words = "the disk is full"
		return e
	}
	if host, err := b.unreachable(ctx); err != nil {
		e.Words = clean(fmt.Sprintf("%s did not answer as it should: %v", host, err))
		return e
	}
	e.Words = fmt.Sprintf("%s failed for %s, from wheels alone", e.tool, b.Python)
	if b.Sources.Offline {
		e.Words += ", without an index (offline)"
	}
	e.temporary = false
	return e
}

// isFull reports whether uv printed the system's error of a full disk (as Rust writes it).
func isFull(lines []string) bool {
	text := strings.Join(lines, " ")
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		if strings.Contains(text, fmt.Sprintf("(os error %d)", int(errno))) {
			return true
		}
	}
	return false
}

// unreachable asks each index once, without credentials, and returns the first that does not answer, or that answers by
// an error about its own state; "" if all do.
func (b *build) unreachable(ctx context.Context) (host string, err error) {
	if b.Sources.Offline {
		return "", nil
	}
	client := &http.Client{Timeout: 15 * time.Second}
	defer client.CloseIdleConnections()
	for _, index := range append([]string{b.Sources.URL}, b.Sources.Extra...) {
		u, err := url.Parse(index)
		if err != nil {
			continue
		}
		u.User = nil
		u.Path = strings.TrimSuffix(u.Path, "/") + "/"
		if err := answers(ctx, client, u); err != nil {
			return u.Host, err
		}
	}
	return "", nil
}

func answers(ctx context.Context, client *http.Client, u *url.URL) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	answer.Body.Close()
	switch code := answer.StatusCode; {
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500:
		return fmt.Errorf("it answered %s", answer.Status)
	}
	return nil
}

// output splits what an installer writes into lines, and removes the passwords of URLs and control characters.
type output struct {
	line  func(string) // called with each line
	rest  []byte
	lines []string // the last ones
}

// maxLines is how many lines an error has.
const maxLines = 10

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.rest = append(o.rest, p...)
	for {
		i := bytes.IndexAny(o.rest, "\r\n") // progress bars use carriage returns
		if i < 0 && len(o.rest) > 1<<16 {
			i = len(o.rest) - 1
		}
		if i < 0 {
			return len(p), nil
		}
		o.take(string(o.rest[:i]))
		o.rest = o.rest[i+1:]
	}
}

// end takes a last line without a line break.
func (o *output) end() { o.take(string(o.rest)); o.rest = nil }

func (o *output) take(line string) {
	line = strings.TrimRight(requirement.Redact(clean(line)), " ")
	if strings.TrimSpace(line) == "" {
		return
	}
	if o.lines = append(o.lines, line); len(o.lines) > maxLines {
		o.lines = o.lines[1:]
	}
	o.line(line)
}

// cut is the beginning of a text, of at most so many bytes.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

var escapes = regexp.MustCompile("\x1b(\\[[0-9;?]*[ -/]*[@-~]|\\][^\x07\x1b]*(\x07|\x1b\\\\)?|[@-_])") // ECMA-48

// clean removes colours, control characters and broken UTF-8.
func clean(line string) string {
	line = escapes.ReplaceAllString(strings.ToValidUTF8(line, "?"), "")
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if !unicode.IsGraphic(r) {
			return '?'
		}
		return r
	}, line)
}
