// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

func TestSamples_AreTakenInTheBackground(t *testing.T) {
	s := &samples{}
	answer := make(chan *endpoint.Usage)
	take := func() (*endpoint.Usage, error) {
		if u := <-answer; u != nil {
			return u, nil
		}
		return nil, endpoint.ErrUnreachable
	}
	usage := func(at time.Duration, cpu float64) *endpoint.Usage {
		return &endpoint.Usage{
			At: int64(at), CPU: cpu, UserCPU: cpu / 2, SystemCPU: -1, Memory: 100, RSS: 60, Cache: -1, Swap: 0, MaxMemory: 120,
			Throttled: -1, ThrottleNS: -1,
		}
	}
	send := func(u *endpoint.Usage) {
		answer <- u
		<-s.taken
	}
	begun := time.Now()
	test.Nil(t, s.next(take), test.Sprint("an endpoint that does not answer"))
	test.Between(t, firstSample, time.Since(begun), 20*time.Second)
	begun = time.Now()
	test.Nil(t, s.next(take), test.Sprint("it still does not"))
	test.Less(t, firstSample, time.Since(begun))
	send(usage(0, 1))
	u := s.next(take) // begins another
	must.NotNil(t, u)
	cpu, mem := u.ResourceUsage.CpuStats, u.ResourceUsage.MemoryStats
	test.Eq(t, 0, cpu.Percent, test.Sprint("of one sample"))
	test.Eq(t, []string{"Percent", "User Mode"}, cpu.Measured)
	test.Eq(t, []string{"RSS", "Swap", "Usage", "Max Usage"}, mem.Measured)
	test.Eq(t, 60, mem.RSS)
	test.Eq(t, 120, mem.MaxUsage)
	send(usage(2*time.Second, 4))
	u = s.next(take)
	must.NotNil(t, u)
	test.Eq(t, 150, u.ResourceUsage.CpuStats.Percent)
	test.Eq(t, 75, u.ResourceUsage.CpuStats.UserMode)
	send(nil)
	test.Nil(t, s.next(take), test.Sprint("it can't be reached"))
	send(usage(4*time.Second, 4))
	u = s.next(take)
	must.NotNil(t, u)
	test.Eq(t, 0, u.ResourceUsage.CpuStats.Percent)
	send(nil)
}

// commands is an endpoint that runs commands.
type commands struct {
	endpoint.Endpoint
	put   []map[string]string
	files []string // what the record says of them
	exec  func(ctx context.Context, o *endpoint.ExecOptions) (*task.Exit, error)
}

func (c *commands) Put(_ context.Context, _ endpoint.Ref, files io.Reader) error {
	got, err := unpack(files)
	c.put = append(c.put, got)
	return err
}

func (c *commands) Renew(_ context.Context, _ endpoint.Ref, m endpoint.Mutable) error {
	c.files = append(c.files, m.Files)
	return nil
}

func (c *commands) Exec(ctx context.Context, _ endpoint.Ref, o *endpoint.ExecOptions) (*task.Exit, error) {
	return c.exec(ctx, o)
}

func TestExec_CopiesChangedFilesFirstAndPassesSizesOn(t *testing.T) {
	c := &commands{}
	d := allocation(t, map[string]string{"web/local/a": "1"})
	r := &remoteTask{ep: c, saved: saved{Dirs: d}, event: func(f string, _ ...any) { t.Errorf("event %q", f) }}
	sizes := make(chan drivers.TerminalSize)
	go func() {
		sizes <- drivers.TerminalSize{Height: 24, Width: 80}
		sizes <- drivers.TerminalSize{Height: 25, Width: 81}
	}()
	c.exec = func(_ context.Context, o *endpoint.ExecOptions) (*task.Exit, error) {
		test.Eq(t, []string{"top"}, o.Command)
		test.True(t, o.TTY)
		test.Eq(t, endpoint.WindowSize{Height: 24, Width: 80}, <-o.Resize)
		test.Eq(t, endpoint.WindowSize{Height: 25, Width: 81}, <-o.Resize)
		return &task.Exit{Code: 3}, nil
	}
	e, err := r.Exec(t.Context(), &drivers.ExecOptions{Command: []string{"top"}, Tty: true, ResizeCh: sizes})
	must.NoError(t, err)
	test.Eq(t, 3, e.Code)

	c.exec = func(ctx context.Context, _ *endpoint.ExecOptions) (*task.Exit, error) {
		<-ctx.Done()
		return nil, errors.Join(endpoint.ErrUnreachable, ctx.Err())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	d.write(t, "web/local/a", "2")
	_, err = r.Exec(ctx, &drivers.ExecOptions{Command: []string{"top"}})
	must.ErrorIs(t, err, context.DeadlineExceeded)
	test.Eq(t, []map[string]string{{"local/a": "1"}, {"local/a": "2"}}, c.put)
	digest, err := d.digest(t.Context())
	must.NoError(t, err)
	must.Len(t, 2, c.files)
	test.NotEq(t, digest, c.files[0])
	test.Eq(t, digest, c.files[1])

	r.foreign = true
	_, err = r.Exec(t.Context(), &drivers.ExecOptions{Command: []string{"top"}})
	must.ErrorIs(t, err, endpoint.ErrEpoch)
}

// hanging is an endpoint that takes no files.
type hanging struct{ commands }

func (h *hanging) Put(ctx context.Context, _ endpoint.Ref, _ io.Reader) error {
	<-ctx.Done()
	return errors.Join(endpoint.ErrUnreachable, ctx.Err())
}

func TestExec_DoesNotWaitForeverForACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{}
		h.exec = func(context.Context, *endpoint.ExecOptions) (*task.Exit, error) { return &task.Exit{Code: 3}, nil }
		said := ""
		r := &remoteTask{
			ep: h, saved: saved{Dirs: allocation(t, map[string]string{"web/local/a": "1"})},
			event: func(f string, _ ...any) { said += f },
		}
		begun := time.Now()
		e, err := r.Exec(t.Context(), &drivers.ExecOptions{Command: []string{"top"}})
		must.NoError(t, err)
		test.Eq(t, 3, e.Code)
		test.Eq(t, callTime, time.Since(begun))
		test.StrContains(t, said, "could not be copied")
	})
}
