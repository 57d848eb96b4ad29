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

// Error is the failure of a run of uv.
type Error struct {
	Words     string // for the job's author, with the end of uv's output in one line, without credentials
	Temporary bool   // a retry may succeed later or on another node
}

func (e *Error) Error() string { return e.Words }

// explain explains err, the failure of a run of uv, with the end of uv's output. It returns an *Error, or wraps ctx.Err
// if ctx has ended. To find out whether the failure is temporary, it looks for known messages and requests the indexes.
func (b *build) explain(ctx context.Context, err error, tail plain.Tail) error {
	last := strings.ReplaceAll(lastWords(tail), b.Work+"/", "") // relative names, because Work is removed
	if last == "" {
		last = err.Error()
	}
	end := fmt.Sprintf(" (last output of %s: %s)", b.with, last)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w%s", ctx.Err(), end)
	case full.MatchString(last):
		return &Error{Words: "the disk is full" + end, Temporary: true}
	}
	host, down := b.unreachable(ctx)
	switch {
	case down != nil:
		words := plain.Line(fmt.Sprintf("package index %s is not available: %v", host, down), 0)
		return &Error{Words: words + end, Temporary: true}
	case broken.MatchString(last):
		return &Error{Words: "a download failed" + end, Temporary: true}
	}
	return &Error{Words: fmt.Sprintf("%s failed for %s, with only wheels allowed%s", b.with, b.Python, end)}
}

// lastWords returns the end of uv's output in one line, without passwords of URLs.
func lastWords(tail plain.Tail) string {
	const most = 800
	text := string(tail)
	if len(tail) == plain.TailSize {
		_, text, _ = strings.Cut(text, " ") // the text may begin within a URL, whose password Redact would miss
	}
	r := []rune(requirement.Redact(plain.Line(plain.Uncoloured(text), 0)))
	if len(r) > most {
		return "…" + string(r[len(r)-most:])
	}
	return string(r)
}

// full matches the errors for a full disk, ENOSPC and EDQUOT, as printed by Rust and the C library. broken matches what
// uv's HTTP client prints for a failed connection, after uv's retries.
var (
	full   = regexp.MustCompile(`\(os error (?:28|122)\)|No space left on device|Disk quota exceeded`)
	broken = regexp.MustCompile(`error (?:sending request|decoding response body)|request or response body error`)
)

// unreachable requests each index once, without credentials. It returns the host and the failure of the first index
// that does not respond, or that reports a temporary failure. If all are available, err is nil.
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
			return u.Host, fmt.Errorf("it returned %s", answer.Status)
		}
	}
	return "", nil
}
