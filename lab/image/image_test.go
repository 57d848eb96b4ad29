// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package image

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
)

func TestEnsure_LooksInOrder(t *testing.T) {
	no := errors.New("no registry")
	for _, tc := range []struct {
		name, base              string
		local                   []string
		pull, extend, bootstrap error
		want, wantErr           string
		calls                   string
	}{
		{name: "LAB_BASE_IMAGE that is here is taken as it is", base: "mine:1", local: []string{"mine:1", Name},
			want: "mine:1"},
		{name: "LAB_BASE_IMAGE is pulled", base: "mine:1", want: "mine:1", calls: "pull mine:1"},
		{name: "LAB_BASE_IMAGE that cannot be had is an error", base: "mine:1", pull: no, wantErr: "LAB_BASE_IMAGE mine:1",
			calls: "pull mine:1"},
		{name: "the image made before is used again", local: []string{Name, upstream}, want: Name},
		{name: "Debian's image that is here gets the packages", local: []string{upstream}, want: Name, calls: "extend"},
		{name: "Debian's image is pulled", want: Name, calls: "pull debian:bookworm-slim, extend"},
		{name: "without packages Debian's image has to do", extend: no, want: upstream,
			calls: "pull debian:bookworm-slim, extend"},
		{name: "without a registry one is made", pull: no, want: Name, calls: "pull debian:bookworm-slim, bootstrap"},
		{name: "the error says both reasons", pull: no, bootstrap: errors.New("not root"), wantErr: "no registry\nnot root",
			calls: "pull debian:bookworm-slim, bootstrap"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var calls []string
			m := maker{
				has:       func(ref string) bool { return slices.Contains(tc.local, ref) },
				pull:      func(ref string) error { calls = append(calls, "pull "+ref); return tc.pull },
				extend:    func() error { calls = append(calls, "extend"); return tc.extend },
				bootstrap: func() error { calls = append(calls, "bootstrap"); return tc.bootstrap },
				progress:  func(string, ...any) {},
			}
			got, err := m.ensure(tc.base)
			if tc.wantErr != "" {
				test.ErrorContains(t, err, tc.wantErr, test.Sprint("error"))
			} else if err != nil || got != tc.want {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
			test.Eq(t, tc.calls, strings.Join(calls, ", "), test.Sprint("calls"))
		})
	}
}

func TestMessages_ReturnTheDaemonsError(t *testing.T) {
	test.NoError(t, messages(strings.NewReader(`{"stream":"Step 1"}{"status":"ok"}`)))
	err := messages(strings.NewReader(`{"stream":"Step 1"}{"error":"apt failed"}{"stream":"x"}`))
	test.EqError(t, err, "apt failed")
	test.Error(t, messages(strings.NewReader(`{"stream":`)),
		test.Sprint("a stream that breaks off is taken for a good one"))
}
