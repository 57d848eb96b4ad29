// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package schema

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes as a user writes it: "10MiB", "64k", "1.5GB", "4096". KiB, MiB, GiB, TiB and a bare K, M,
// G, T are powers of 1024, as in Docker and systemd. kB, MB, GB, TB are powers of 1000. Case does not matter. An empty
// Size means that the option is not set.
type Size string

// Bytes returns the size in bytes, or 0 if the size is not set or not valid. Validate reports a size
// that is not valid.
func (s Size) Bytes() int64 {
	n, _ := ParseSize(string(s))
	return n
}

var units = map[string]float64{
	"": 1, "b": 1,
	"k": 1 << 10, "kib": 1 << 10, "kb": 1e3,
	"m": 1 << 20, "mib": 1 << 20, "mb": 1e6,
	"g": 1 << 30, "gib": 1 << 30, "gb": 1e9,
	"t": 1 << 40, "tib": 1 << 40, "tb": 1e12,
}

// ParseSize parses a size in bytes. It returns an error if the text is not a size, is negative, or
// does not fit in an int64.
func ParseSize(s string) (int64, error) {
	text := strings.TrimSpace(s)
	end := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(text)
	}
	unit, known := units[strings.ToLower(strings.TrimSpace(text[end:]))]
	n, err := strconv.ParseFloat(text[:end], 64)
	if bytes := n * unit; err == nil && known && bytes < math.MaxInt64 {
		return int64(bytes), nil
	}
	return 0, fmt.Errorf("%q is not a size: use for example \"512KiB\" or \"10MiB\"", s)
}

// Duration is a time span as a user writes it: "30s", "1h30m", "500ms" (time.ParseDuration). An empty Duration means
// that the option is not set.
type Duration string

// Duration returns the time span, or 0 if the option is not set or not valid. Validate reports a
// duration that is not valid.
func (d Duration) Duration() time.Duration {
	n, _ := parseDuration(string(d))
	return time.Duration(n)
}

// parseDuration parses a duration and returns nanoseconds. A negative duration is an error.
func parseDuration(s string) (int64, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration: use for example \"30s\" or \"5m\"", s)
	}
	return int64(d), nil
}
