// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/moby/moby/client"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// A larger set of files is sent in pieces, and a file that is larger than one as it is read: all arrive, in order, and
// what fails to be read is told.
func TestPut_SendsPieces(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		ctx, c, r := t.Context(), e.connect(t), object(t, e)
		ref := start(t, c, r, shell("exec sleep 1000")).Ref()
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		add := func(h tar.Header, size int64) {
			h.Mode, h.Size = 0o644, size
			must.NoError(t, w.WriteHeader(&h))
			_, err := io.CopyN(w, zeros{}, size)
			must.NoError(t, err)
		}
		for i := range 5 {
			add(tar.Header{Name: fmt.Sprintf("local/a/f%d", i)}, 3<<20)
		}
		add(tar.Header{Name: "local/a/large"}, 9<<20)
		add(tar.Header{Name: "local/a/link", Typeflag: tar.TypeLink, Linkname: "local/a/f0"}, 0)
		half := b.Len()
		add(tar.Header{Name: "local/a/more"}, 9<<20)
		must.NoError(t, w.Close())
		must.NoError(t, c.Put(ctx, ref, bytes.NewReader(b.Bytes())))
		var out buffer
		x, err := c.Exec(ctx, ref, &endpoint.ExecOptions{
			Command: []string{"sh", "-c", "cd /local/a; for f in *; do stat -c '%n %s' $f; done"}, Stdout: &out,
		})
		must.NoError(t, err)
		must.Eq(t, 0, x.Code)
		want := "f0 3145728\nf1 3145728\nf2 3145728\nf3 3145728\nf4 3145728\nlarge 9437184\nlink 3145728\nmore 9437184\n"
		must.Eq(t, want, out.String())
		must.ErrorContains(t, c.Put(ctx, ref, bytes.NewReader(b.Bytes()[:half+1<<20])), "failed to read the files: ")
		_, err = c.Stop(ctx, ref, "SIGKILL", 0, "over")
		must.NoError(t, err)
		must.NoError(t, c.Remove(ctx, ref))
	})
}

// A later Put changes no directory that an earlier one has made, unless it has it.
func TestPut_LeavesDirectories(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		ctx, c, r := t.Context(), e.connect(t), object(t, e)
		ref := start(t, c, r, shell("exec sleep 1000")).Ref()
		must.NoError(t, c.Put(ctx, ref, files(t, map[string]string{"local/a/f": "1"})))
		run := func(command string) string {
			var out buffer
			x, err := c.Exec(ctx, ref, &endpoint.ExecOptions{Command: []string{"sh", "-c", command}, Stdout: &out})
			must.NoError(t, err)
			must.Eq(t, 0, x.Code)
			return out.String()
		}
		run("chmod 711 /local; chmod 770 /local/a; chmod 705 /secrets")
		must.NoError(t, c.Put(ctx, ref, files(t, map[string]string{"local/a/f": "2", "local/new/f": "3"})))
		must.Eq(t, "711\n770\n705\n755\n", run("stat -c %a /local /local/a /secrets /local/new"))
		must.Eq(t, "23", run("cat /local/a/f /local/new/f"))

		other := e.connect(t) // which does not know what is there
		must.NoError(t, other.Put(ctx, ref, files(t, map[string]string{"local/a/f": "4"})))
		must.Eq(t, "755\n4", run("stat -c %a /local/a; cat /local/a/f"))
		_, err := c.Stop(ctx, ref, "SIGKILL", 0, "over")
		must.NoError(t, err)
		must.NoError(t, c.Remove(ctx, ref))
	})
}

// A user is found where /etc/passwd is a link.
func TestPut_FollowsALinkToTheUsers(t *testing.T) {
	onEngines(t, func(t *testing.T, e *engine) {
		ctx, c, r := t.Context(), e.connect(t), object(t, e)
		s, ref := shell("id -u; stat -c %u /local/f; exec sleep 1000"), endpoint.Ref{Name: r.Name, Epoch: 1}
		s.User = "jo"
		must.NoError(t, c.Create(ctx, r))
		must.NoError(t, c.Prepare(ctx, ref, s, func(string) {}))
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for name, text := range map[string]string{"users/1": "jo:x:1234:1234::/:/bin/sh\n", "etc/group": "jo:x:1234:\n"} {
			must.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}))
			_, err := io.WriteString(w, text)
			must.NoError(t, err)
		}
		for name, link := range map[string]string{"etc/passwd": "../users/2", "users/2": "/users/1"} {
			must.NoError(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: link}))
		}
		must.NoError(t, w.Close())
		_, err := e.api.CopyToContainer(ctx, r.Name, client.CopyToContainerOptions{DestinationPath: "/", Content: &b})
		must.NoError(t, err)
		must.NoError(t, c.Put(ctx, ref, files(t, map[string]string{"local/f": ""})))
		_, err = c.Start(ctx, ref, s)
		must.NoError(t, err)
		l, err := c.Logs(ctx, r.Name, "stdout", endpoint.Place{}, 0)
		must.NoError(t, err)
		defer l.Close()
		got := ""
		for len(got) < len("1234\n1234\n") {
			chunk, err := l.Next()
			must.NoError(t, err)
			got += string(chunk.Data)
		}
		must.Eq(t, "1234\n1234\n", got)
		_, err = c.Stop(ctx, ref, "SIGKILL", 0, "over")
		must.NoError(t, err)
		must.NoError(t, c.Remove(ctx, ref))
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

type buffer struct{ bytes.Buffer }

func (*buffer) Close() error { return nil }
