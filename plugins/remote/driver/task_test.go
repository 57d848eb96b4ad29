// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"

	"github.com/outrider-dev/outrider/plugins/remote/host"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
)

func TestExitOf_IsExactOrLost(t *testing.T) {
	for name, row := range map[string]struct {
		told  drivers.ExitResult
		want  task.Exit // without its time
		event string
	}{
		"a code":   {told: drivers.ExitResult{ExitCode: 7}, want: task.Exit{Code: 7}},
		"a signal": {told: drivers.ExitResult{ExitCode: 137, Signal: 9}, want: task.Exit{Signal: 9}},
		"out of memory": {
			told: drivers.ExitResult{ExitCode: 137, Signal: 9, OOMKilled: true},
			want: task.Exit{Signal: 9, OOMKilled: true},
		},
		"lost": {
			told: drivers.ExitResult{ExitCode: -1, Err: errors.New("task is lost: it is")},
			want: task.Exit{Lost: true, Reason: "it is"},
		},
		"with a message": {
			told: drivers.ExitResult{ExitCode: 137, Signal: 9, Err: errors.New("kill_timeout passed")},
			want: task.Exit{Signal: 9}, event: "kill_timeout passed",
		},
		"a negative code": {
			told: drivers.ExitResult{ExitCode: -5},
			want: task.Exit{Lost: true, Reason: "the host reported an invalid exit: code -5, signal 0"},
		},
		"an invalid code": {
			told: drivers.ExitResult{ExitCode: 1 << 20},
			want: task.Exit{Lost: true, Reason: "the host reported an invalid exit: code 1048576, signal 0"},
		},
		"an invalid signal": {
			told: drivers.ExitResult{Signal: 4000},
			want: task.Exit{Lost: true, Reason: "the host reported an invalid exit: code 0, signal 4000"},
		},
		"a message with escapes": {
			told: drivers.ExitResult{Err: errors.New("a\x1b[2Jb\n" + strings.Repeat("x", 1000))}, want: task.Exit{},
			event: "a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			said := ""
			remote := &remoteTask{event: func(format string, args ...any) { said += fmt.Sprintf(format, args...) }}
			got := remote.exitOf(&row.told)
			must.False(t, got.At.IsZero())
			row.want.At = got.At
			must.Eq(t, row.want, *got)
			must.Eq(t, row.event == "", said == "", must.Sprint(said))
			must.StrHasPrefix(t, row.event, said)
			must.False(t, strings.ContainsAny(said, "\x1b\n"), must.Sprintf("%q", said))
			must.True(t, len([]rune(said)) <= maxMessage+1, must.Sprint(len(said)))
		})
	}
}

func TestStop_ReportsAnUnreachableHost(t *testing.T) {
	testsupport.Long(t, "a stop waits for the host")
	stopped := &remoteTask{
		config: &drivers.TaskConfig{ID: "a/b/c"}, host: host.New(host.Config{Name: "box"}), saved: saved{Endpoint: "box"},
	}
	err := stopped.end(t.Context(), time.Second, "")
	must.ErrorContains(t, err, `pending until endpoint "box" can be reached: endpoint "box" can't be reached now`)
	must.Eq(t, &stop{timeout: time.Second}, stopped.stop)

	ended := &remoteTask{config: stopped.config, host: stopped.host, saved: stopped.saved}
	ended.End(&task.Exit{Code: 7})
	must.NoError(t, ended.end(t.Context(), time.Second, ""))
}

// exited is a host's driver with a task that has ended.
type exited struct{ host.Driver }

func (exited) WaitTask(context.Context, string) (<-chan *drivers.ExitResult, error) {
	results := make(chan *drivers.ExitResult, 1)
	results <- &drivers.ExitResult{ExitCode: 7}
	return results, nil
}

func TestFollow_HungLogDirectoryDelaysNoExitForever(t *testing.T) {
	testsupport.Long(t, "an exit waits for the output")
	link := simulated{
		claim: func(*shim.ClaimRequest) (*shim.ClaimReply, error) { return &shim.ClaimReply{Verdict: shim.Have}, nil },
	}.link(t)
	link.Driver = exited{}
	said := make(chan string, 1)
	f := &following{remoteTask: &remoteTask{
		config: &drivers.TaskConfig{ID: "a/b/c", AllocDir: testsupport.HungDir(t), Name: "b"}, ctx: t.Context(),
		event: func(format string, args ...any) { said <- fmt.Sprintf(format, args...) },
	}}
	exits := make(chan *task.Exit, 1)
	go func() { exits <- f.follow(link) }()
	select {
	case exit := <-exits:
		must.Eq(t, 7, exit.Code)
		must.StrHasPrefix(t, "The end of the output is missing", <-said)
	case <-time.After(2 * outputTime):
		t.Fatal("the exit is not reported")
	}
}

// The plugin must not retry forever on a host that grants a claim and then refuses the change.
func TestStop_DoesNotRetryForeverIfTheHostRefuses(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := 0
	link := simulated{
		claim: func(*shim.ClaimRequest) (*shim.ClaimReply, error) { return &shim.ClaimReply{Verdict: shim.Have}, nil },
		change: func(*shim.ChangeRequest) error {
			changes++
			if changes == 100 {
				cancel()
			}
			return status.Error(codes.FailedPrecondition, "the run belongs to another allocation")
		},
	}.link(t)
	stopped := &remoteTask{config: &drivers.TaskConfig{ID: "a/b/c"}, ctx: ctx, stop: &stop{timeout: time.Second}}
	err := stopped.stopOn(link)
	must.Eq(t, codes.FailedPrecondition, status.Code(err), must.Sprint(err))
	must.Eq(t, 2, changes)
}
