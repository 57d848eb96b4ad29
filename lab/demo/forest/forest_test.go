// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package forest

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func TestRead_FindsThisProcessAndItsParent(t *testing.T) {
	all, err := Read(context.Background(), func(ctx context.Context, argv ...string) (string, error) {
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
		return string(out), err
	})
	must.NoError(t, err)
	for _, p := range all {
		if p.PID == os.Getpid() {
			must.Eq(t, os.Getppid(), p.PPID, must.Sprintf("read %+v", p))
			must.NotEq(t, 0, p.RSS, must.Sprintf("read %+v", p))
			must.StrContains(t, p.Args, ".test", must.Sprintf("read %+v", p))
			return
		}
	}
	t.Fatal("this process is not in the list")
}

func TestPrint_DrawsChildrenBelowTheirParents(t *testing.T) {
	all := parse("10 1 5 nomad agent\n12 11 7 sleep 600\n11 10 6 plugin\n13 11 7 sleep 600\n99 2 \nbad\n")
	var b strings.Builder
	Print(&b, Below(all, 10), 60)
	want := `    PID    PPID  RSS KiB  COMMAND
     10       1        5  nomad agent
     11      10        6   \_ plugin
     12      11        7       |_ sleep 600
     13      11        7       \_ sleep 600
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestColor_IsOfTheRole(t *testing.T) {
	for args, want := range map[string]string{
		"/cache/nomad-1.11.3-amd64 agent -config x": "34", "/cache/nomad-1.11.3-amd64 executor {}": "31",
		"/usr/bin/nomad logmon": "31", "/plugins/nomad-driver-exec-lite": "32", "/plugins/nomad-device-usb": "32",
		"outrider-supervisor supervise /state": "36", "sleep 1": "33",
	} {
		test.Eq(t, want, Process{Args: args}.color(), test.Sprint(args))
	}
}
