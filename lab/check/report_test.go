package check

import (
	"bytes"
	"strings"
	"testing"
)

// feed runs a report over a stream of events.
func feed(t *testing.T, allowed, stream string) (*report, string, error) {
	t.Helper()
	list, err := parseSkips(allowed)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	r := newReport(&b, list)
	if err := r.read(strings.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	err = r.finish()
	return r, b.String(), err
}

func TestReportCountsAndJudges(t *testing.T) {
	const passing = `{"Action":"run","Package":"m/p","Test":"TestA"}
{"Action":"pass","Package":"m/p","Test":"TestA","Elapsed":0}
{"Action":"pass","Package":"m/p","Elapsed":0.5}
`
	const skipped = `{"Action":"output","Package":"m/p","Test":"TestS","Output":"=== RUN   TestS\n"}
{"Action":"output","Package":"m/p","Test":"TestS","Output":"    p_test.go:3: takes root\n"}
{"Action":"output","Package":"m/p","Test":"TestS","Output":"--- SKIP: TestS (0.00s)\n"}
{"Action":"skip","Package":"m/p","Test":"TestS"}
`
	for _, tc := range []struct {
		name, allowed, stream string
		ok                    bool
		last                  string
		shows                 string
	}{
		{name: "all pass", stream: passing, ok: true, last: "1 passed, 0 failed, 0 skipped", shows: "ok   m/p  1 tests  0.5 s"},
		{name: "a failure shows its output", stream: passing + `{"Action":"output","Package":"m/p","Test":"TestB","Output":"    b_test.go:9: want 2\n"}
{"Action":"fail","Package":"m/p","Test":"TestB"}
{"Action":"fail","Package":"m/p"}
`, last: "1 passed, 1 failed, 0 skipped", shows: "b_test.go:9: want 2"},
		{name: "an unlisted skip fails", stream: passing + skipped,
			last: "1 passed, 0 failed, 1 skipped", shows: "unexpected skip of m/p TestS: p_test.go:3: takes root"},
		{name: "a listed skip does not", allowed: "p TestS any # reason", stream: passing + skipped, ok: true,
			last: "1 passed, 0 failed, 1 skipped", shows: "skip m/p TestS: p_test.go:3: takes root"},
		{name: "a package that does not build fails", stream: `{"ImportPath":"m/p","Action":"build-output","Output":"p.go:1: undefined: x\n"}
{"Action":"fail","Package":"m/p","FailedBuild":"m/p"}
`, last: "0 passed, 0 failed, 0 skipped", shows: "undefined: x"},
		{name: "a test that never ended is named", stream: `{"Action":"output","Package":"m/p","Test":"TestHang","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"m/p"}
`, last: "0 passed, 0 failed, 0 skipped", shows: "TestHang did not end"},
		{name: "what is no event is shown", stream: "go: no such module\n" + passing, ok: true,
			last: "1 passed, 0 failed, 0 skipped", shows: "go: no such module"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, out, err := feed(t, tc.allowed, tc.stream)
			if (err == nil) != tc.ok {
				t.Errorf("verdict %v, want ok=%v", err, tc.ok)
			}
			lines := strings.Split(strings.TrimSpace(out), "\n")
			if last := lines[len(lines)-1]; last != tc.last {
				t.Errorf("last line %q, want %q", last, tc.last)
			}
			if !strings.Contains(out, tc.shows) {
				t.Errorf("no %q in\n%s", tc.shows, out)
			}
		})
	}
}

func TestSkipListDemandsAReasonAndAKnownCondition(t *testing.T) {
	for _, bad := range []string{"p TestA any", "p TestA # why", "p TestA on-mondays # why", "p Test( any # why"} {
		if _, err := parseSkips(bad); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := skips(); err != nil {
		t.Errorf("the real list: %v", err)
	}
}

func TestSkipIsAllowedOnlyForItsTestAndWhereItsConditionHolds(t *testing.T) {
	conditions["never"] = func() bool { return false }
	defer delete(conditions, "never")
	list, err := parseSkips("lab/e2e TestA.* any # x\ncore/p TestB never # x\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		pkg, test string
		want      bool
	}{
		{"m/lab/e2e", "TestAny", true}, {"lab/e2e", "TestA", true},
		{"m/lab/e2e", "TestB", false}, {"m/other", "TestA", false}, {"m/notlab/e2e", "TestA", false},
		{"m/core/p", "TestB", false},
	} {
		if got := allows(list, tc.pkg, tc.test); got != tc.want {
			t.Errorf("%s %s: %v", tc.pkg, tc.test, got)
		}
	}
}
