package image

import (
	"errors"
	"slices"
	"strings"
	"testing"
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
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
			} else if err != nil || got != tc.want {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
			if c := strings.Join(calls, ", "); c != tc.calls {
				t.Errorf("calls %q, want %q", c, tc.calls)
			}
		})
	}
}

func TestMessages_ReturnTheDaemonsError(t *testing.T) {
	if err := messages(strings.NewReader(`{"stream":"Step 1"}{"status":"ok"}`)); err != nil {
		t.Error(err)
	}
	err := messages(strings.NewReader(`{"stream":"Step 1"}{"error":"apt failed"}{"stream":"x"}`))
	if err == nil || err.Error() != "apt failed" {
		t.Errorf("got %v", err)
	}
	if err := messages(strings.NewReader(`{"stream":`)); err == nil {
		t.Error("a stream that breaks off is taken for a good one")
	}
}
