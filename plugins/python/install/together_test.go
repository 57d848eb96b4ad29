package install

import (
	"errors"
	"testing"
)

func TestABuildDoesNotAnswerForWhatOthersDownload(t *testing.T) {
	r := &Request{Dir: "/env", Work: "/work", Downloads: t.TempDir(), MaxSize: 10}
	grown := func(b *bound, dir string, size int64, want error) {
		t.Helper()
		if err := b.judge(dir, size); !errors.Is(err, want) {
			t.Errorf("%d in %s: %v, not %v", size, dir, err, want)
		}
	}
	first := newBound(r)
	grown(first, r.Downloads, 10, nil)
	grown(first, r.Downloads, 11, errTooLarge)
	second := newBound(r)
	for _, b := range []*bound{first, second} {
		grown(b, r.Downloads, 20, nil)
		grown(b, r.Downloads, 22, errTooLargeTogether)
		grown(b, r.Work, 11, errTooLarge)
	}
	first.end()
	grown(second, r.Downloads, 20, nil) // as what the first wrote is still there
	second.end()
	if third := newBound(r); third.others != 0 {
		t.Errorf("there are %d others", third.others)
	} else {
		third.end()
	}
	if _, ok := sharing.builds[r.Downloads]; ok {
		t.Errorf("left: %v", sharing.builds)
	}
}
