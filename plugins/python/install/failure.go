// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/internal/core/plain"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// Error is a failure of uv.
type Error struct {
	Words string // one sentence for the job's author
	Last  string // the end of uv's output in one line, without credentials

	temporary bool
}

func (e *Error) Error() string { return e.Words + e.Last }

// Temporary reports whether the same may succeed later or elsewhere.
func (e *Error) Temporary() bool { return e.temporary }

// explain returns the error of uv, which failed with err, and the end of its output. It tells what may pass.
func (b *build) explain(ctx context.Context, err error, tail plain.Tail) error {
	last := strings.ReplaceAll(lastWords(tail), b.Work+"/", "") // it is removed with the build
	if last == "" {
		last = err.Error()
	}
	e := &Error{Last: fmt.Sprintf(" (the last lines of %s: %s)", b.with, last), temporary: true}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w%s", ctx.Err(), e.Last)
	case full.MatchString(last):
		e.Words = "the disk is full"
		return e
	}
	host, down := b.unreachable(ctx)
	switch {
	case down != nil:
		e.Words = plain.Line(fmt.Sprintf("%s did not answer as it should: %v", host, down), 0)
	case broken.MatchString(last):
		e.Words = "a download failed"
	default:
		e.Words = fmt.Sprintf("%s failed for %s, from wheels alone", b.with, b.Python)
		e.temporary = false
	}
	return e
}

// lastWords is the end of what uv wrote, in one line, without passwords of URLs.
func lastWords(tail plain.Tail) string {
	const most = 800
	text := string(tail)
	if len(tail) == plain.TailSize {
		_, text, _ = strings.Cut(text, " ") // which may begin within a URL
	}
	r := []rune(requirement.Redact(plain.Line(plain.Uncoloured(text), 0)))
	if len(r) > most {
		return "…" + string(r[len(r)-most:])
	}
	return string(r)
}

// full matches the system's errors of a full disk, ENOSPC and EDQUOT, as Rust and the C library write them, and broken
// what uv's HTTP client prints of a connection that failed, after uv has tried again.
var (
	full   = regexp.MustCompile(`\(os error (?:28|122)\)|No space left on device|Disk quota exceeded`)
	broken = regexp.MustCompile(`error (?:sending request|decoding response body)|request or response body error`)
)

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
		answer, err := client.Do((&http.Request{Method: http.MethodGet, URL: u.JoinPath("/")}).WithContext(ctx))
		if err != nil {
			return u.Host, err
		}
		answer.Body.Close()
		switch code := answer.StatusCode; {
		case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500:
			return u.Host, fmt.Errorf("it answered %s", answer.Status)
		}
	}
	return "", nil
}
