// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// format changes with the way in which environments are built, so that older ones are not used.
const format = 8

// environmentKey is what an environment depends on. Two environments that may differ have different keys. secret has
// all of it, with the passwords of URLs; text is what the operator sees.
func environmentKey(
	python install.Python, uv install.Installer, required *requirement.Set, src *sources, refreshed string,
) (text, secret string, err error) {
	all, err := json.Marshal(struct {
		Format       int
		Python       install.Python
		UV           install.Installer
		Requirements *requirement.Set
		Sources      *sources
		Refreshed    string
	}{format, python, uv, required, src, refreshed})
	if err != nil {
		return "", "", fmt.Errorf("failed to describe the environment: %w", err)
	}
	return requirement.Redact(string(all)), string(all) + digest(src.netrc), nil
}

// refreshing distinguishes the environments of a job with refresh, "" without it. It changes once a minute: a task that
// fails and is started again every few seconds must not fill the cache.
func refreshing(t *TaskConfig, now time.Time) string {
	if !t.Refresh {
		return ""
	}
	return now.UTC().Truncate(time.Minute).Format(time.RFC3339)
}
