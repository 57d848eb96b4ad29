// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// receives is a fake host that only receives files.
type receives struct {
	do func(r *FilesRequest, archive io.Reader) error
}

func (r receives) files(_ context.Context, q *FilesRequest, archive io.Reader) error {
	return r.do(q, archive)
}

func clientOf(t *testing.T, s receiving) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	g := grpc.NewServer()
	g.RegisterService(&service, s)
	go func() { _ = g.Serve(listener) }()
	t.Cleanup(g.Stop)
	conn, err := grpc.NewClient("passthrough:///host", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
	must.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestFiles_ReportsAFailureToBothSides(t *testing.T) {
	all := make(chan string, 1)
	c := clientOf(t, receives{do: func(q *FilesRequest, archive io.Reader) error {
		if q.TaskID == "refused" {
			return errors.New("no space")
		}
		text, err := io.ReadAll(archive)
		all <- fmt.Sprintf("%d bytes, error %t", len(text), err != nil)
		return err
	}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	zeros := func(n int64, err error) func(io.Writer) error {
		return func(w io.Writer) error {
			_, copied := io.CopyN(w, zero{}, n)
			return errors.Join(copied, err)
		}
	}
	must.NoError(t, Files(ctx, c, &FilesRequest{}, zeros(3<<20, nil)))
	must.Eq(t, "3145728 bytes, error false", <-all)

	// an error on the node: even io.EOF must not look like the regular end of the archive
	must.ErrorIs(t, Files(ctx, c, &FilesRequest{TaskID: "cut"}, zeros(3<<20, io.EOF)), io.EOF)
	must.StrHasSuffix(t, "error true", <-all)

	must.ErrorContains(t, Files(ctx, c, &FilesRequest{TaskID: "refused"}, zeros(64<<20, nil)), "no space")
	must.NoError(t, ctx.Err())
}

type zero struct{}

func (zero) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
