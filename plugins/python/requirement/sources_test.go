// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"errors"
	"testing"

	"github.com/shoenig/test/must"
)

func TestResolve_AddsCredentialsToTheIndexesOfALock(t *testing.T) {
	const (
		node, more = "https://user:secret@packages.example.com/simple", "https://user:secret@more.example.com/simple/"
		other      = "https://other.example.com/simple"
		bare, mine = "https://packages.example.com/simple/", "https://me:mine@other.example.com/simple"
	)
	for name, test := range map[string]struct {
		job    Sources
		lock   Sources
		url    string
		extra  []string
		others bool // the job or the lock names a source that is not the node's
	}{
		"no indexes":       {url: node, extra: []string{more}},
		"the node's index": {lock: Sources{Extra: []string{bare}}, url: node, extra: []string{more}},
		"the node's index and another": {
			lock: Sources{Extra: []string{bare, other}},
			url:  node, extra: []string{other}, others: true,
		},
		"an index that the job names, too": {
			job: Sources{Extra: []string{mine}}, lock: Sources{Extra: []string{other, bare}},
			url: node, extra: []string{mine}, others: true,
		},
		"the job's index": {job: Sources{URL: mine}, lock: Sources{Extra: []string{other}}, url: mine, others: true},
		"other credentials": {
			lock: Sources{URL: "https://me:mine@packages.example.com/simple"},
			url:  "https://me:mine@packages.example.com/simple", others: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			own := Sources{URL: node, Extra: []string{more}}
			got, _, err := Resolve(own, test.job, test.lock, true)
			must.NoError(t, err)
			must.Eq(t, test.url, got.URL)
			must.Eq(t, test.extra, got.Extra)
			_, _, err = Resolve(own, test.job, test.lock, false)
			must.EqOp(t, test.others, errors.Is(err, ErrJobIndexes))
		})
	}
}
