// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"strings"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// format changes with the way in which environments are built, so that older ones are not used.
const format = 7

// key is what an environment depends on. secret has all of it, with the passwords of URLs; text is what the operator
// sees.
type key struct{ text, secret string }

// environmentKey is the key of an environment. Two environments that may differ have different keys.
func environmentKey(
	python install.Python, i install.Installer, required *requirement.Set, src *sources, refresh string,
) key {
	var all, text strings.Builder
	line := func(name string, values ...any) {
		l := name + " " + fmt.Sprintln(values...)
		all.WriteString(l)
		text.WriteString(index.Redact(l))
	}
	line("python", python.Key, python.Path, python.File)
	line("installer", i, format)
	line("locked", required.Hashed, required.Complete)
	for _, l := range required.Lines {
		line("require", l)
	}
	for _, l := range required.Constraints {
		line("constrain", l)
	}
	for _, l := range required.Overrides {
		line("override", l)
	}
	if required.NewerThan != "" {
		line("newer", required.NewerThan)
	}
	for _, p := range required.Projects {
		line("project", digest(p.Text), p.Extras, p.Groups)
	}
	if u := required.UVLock; u != nil {
		line("uv.lock", digest(u.Lock), digest(u.Project), u.Choice.Extras, u.Choice.Groups)
	}
	for _, s := range src.describe(required.Hashed) {
		line("from", s)
	}
	if refresh != "" {
		line("refreshed", refresh)
	}
	if len(src.netrc) > 0 {
		fmt.Fprintln(&all, "netrc", digest(src.netrc))
	}
	return key{text.String(), all.String()}
}

// refreshing distinguishes the environments of a job with refresh, "" without it. It changes once a minute: a task that
// fails and is started again every few seconds must not fill the cache.
func refreshing(t *TaskConfig, now time.Time) string {
	if !t.Refresh {
		return ""
	}
	return now.UTC().Truncate(time.Minute).Format(time.RFC3339)
}
