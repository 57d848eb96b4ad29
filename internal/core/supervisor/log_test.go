// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestLog_ContainsEachPhaseOfATask(t *testing.T) {
	h := newHost(t, withoutCgroup)
	c := h.client()
	st := h.launch(c, h.shell("sleep 0.2; exit 3"))
	h.wait(c, st.ID)
	h.destroy(c, st.ID)
	testsupport.Eventually(t, "the lines are written", func() bool {
		text, err := os.ReadFile(h.store.Log())
		must.NoError(t, err)
		rest := string(text)
		for _, want := range []string{
			"msg=starting id=" + st.ID, "msg=running id=" + st.ID, `exit="code 3"`, "msg=destroyed id=" + st.ID,
		} {
			_, after, found := strings.Cut(rest, want)
			if !found {
				return false
			}
			rest = after
		}
		return true
	})
}

func TestLog_IsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must.NoError(t, err)
	defer f.Close()
	l := &logFile{File: f, path: path}
	last := ""
	for n := range 4 * logSize / 64 {
		last = fmt.Sprintf("%063d\n", n)
		l.writeLine([]byte(last))
	}
	now, err := os.ReadFile(path)
	must.NoError(t, err)
	old, err := os.ReadFile(path + ".1")
	must.NoError(t, err)
	test.Eq(t, logSize, len(old))
	test.LessEq(t, logSize, len(now))
	test.True(t, bytes.HasSuffix(now, []byte(last)))
	next := append(old[len(old)-64:], now[:64]...)
	var before, after int
	_, err = fmt.Sscanf(string(next), "%d\n%d\n", &before, &after)
	must.NoError(t, err)
	test.Eq(t, before+1, after, test.Sprint("lines are missing between the files"))
}

func TestLog_NeverBlocks(t *testing.T) {
	l := &logFile{lines: make(chan []byte, 1)}
	for range 3 {
		n, err := l.Write([]byte("line\n")) // nothing reads the queue
		must.NoError(t, err)
		test.Eq(t, 5, n)
	}
}
