// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
)

func TestOutput_IsFollowedThroughRotation(t *testing.T) {
	t.Parallel()
	n := commonNode.get(t)
	// three files of 1 MiB are written while a client follows
	a := n.start(t, conf{"command": counter, "args": []string{"-pad", "120", "-burst", "200", "-every", "40ms", "-lines",
		"24000", "-then", "exit:0"},
		"logs": conf{"max_files": 10, "max_file_size": 1}})
	a.readable(t)

	cancel := make(chan struct{})
	defer time.AfterFunc(5*time.Minute, func() { close(cancel) }).Stop()
	frames, errs := n.Client().AllocFS().Logs(a.stub(t), true, "main", "stdout", api.OriginStart, 0, cancel, nil)
	stream := bufio.NewReader(api.NewFrameReader(frames, errs, cancel))
	var b strings.Builder
	for line := ""; !strings.HasPrefix(line, "last"); b.WriteString(line) {
		var err error
		line, err = stream.ReadString('\n')
		must.NoError(t, err, must.Sprintf("the stream ended after %d bytes: %q", b.Len(), last(b.String(), 100)))
	}
	lines, ended, err := numbered(b.String())
	must.NoError(t, err, must.Sprintf("followed %d lines, end %v", lines, ended))
	must.True(t, ended, must.Sprintf("followed %d lines, end %v", lines, ended))
	test.Eq(t, 24000, lines, test.Sprintf("followed %d lines, end %v", lines, ended))
	test.Eq(t, "exit 0", a.ended(t), test.Sprint("ended by"))
	if whole := a.output(t, "stdout"); whole != b.String() {
		t.Errorf("the files have %d bytes, %d were followed", len(whole), b.Len())
	}
	files, _ := filepath.Glob(a.dir() + "/alloc/logs/main.stdout.*")
	test.SliceLen(t, 4, files, test.Sprintf("%d log files, want 4", len(files)))
}

// needRootAgent skips the test if the agent is not root.
func needRootAgent(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs an agent that is root")
	}
}

func needMemoryCgroup(t testing.TB) {
	t.Helper()
	if !hasMemoryCgroup() {
		t.Skip("needs a memory cgroup and the right to use it")
	}
}

func hasMemoryCgroup() bool { return slices.Contains(cgroup.Detect("").Controllers, "memory") }

// The other mistakes are in TestStartTask_RefusesBadInputInOneSentence.
func TestBadInput_GetsOneSentence(t *testing.T) {
	t.Parallel()
	n := commonNode.get(t)
	a := n.submit(t, job(t, sh("true"), asUser("nobody-here")))
	a.ended(t)
	i, st, err := a.info()
	must.NoError(t, err)
	test.Eq(t, "failed", i.ClientStatus)
	var said []string
	for _, e := range st.Events {
		if e.Type == api.TaskDriverFailure || e.Type == api.TaskFailedValidation {
			said = append(said, e.DisplayMessage)
		}
	}
	must.SliceLen(t, 1, said, must.Sprint(said))
	test.StrContains(t, said[0], `user "nobody-here" does not exist on this node`)
	test.StrNotContains(t, said[0], "\n")
}
