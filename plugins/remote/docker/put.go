// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"strconv"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"github.com/moby/sys/user"

	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// Put is part of endpoint.Endpoint. The files are the container's user's.
func (e *Endpoint) Put(ctx context.Context, ref endpoint.Ref, files io.Reader) error {
	v, err := e.own(ctx, ref)
	if err != nil {
		return err
	}
	if v.box == nil {
		return endpoint.ErrUnprepared
	}
	return e.put(ctx, ref, v, files)
}

func (e *Endpoint) put(ctx context.Context, ref endpoint.Ref, v *view, files io.Reader) error {
	user, err := e.user(ctx, v.box)
	if err != nil {
		return err
	}
	dirs := map[string]bool{}
	if o := e.mine(v.top); o != nil && o.put == v.box.id {
		dirs = maps.Clone(o.dirs)
	}
	var sent error
	err = translate(files, user, dirs, func(piece io.Reader) error {
		sent = e.send(ctx, ref, v.box.id, piece)
		return sent
	})
	if err == nil {
		e.change(v.top, func(o *owned) { o.put, o.dirs = v.box.id, dirs })
		return nil
	}
	if sent != nil && errors.Is(err, sent) {
		return sent
	}
	return fmt.Errorf("failed to read the files: %w", err)
}

// send sends a piece of the files, if the container still is that of this owner.
func (e *Endpoint) send(ctx context.Context, ref endpoint.Ref, id string, piece io.Reader) error {
	v, err := e.own(ctx, ref)
	if err != nil {
		return err
	}
	if v.box == nil || v.box.id != id {
		return endpoint.ErrUnprepared
	}
	_, err = e.api.CopyToContainer(ctx, id, client.CopyToContainerOptions{DestinationPath: "/", Content: piece})
	return failed("put files into the container", err)
}

// user returns the user that a container runs as. The API could set the owner of files itself, but Docker 20.10 looks
// the name up among the users of the engine's host.
func (e *Endpoint) user(ctx context.Context, b *box) (*user.ExecUser, error) {
	id, group, both := strings.Cut(b.user, ":")
	uid, err := strconv.Atoi(cmp.Or(id, "0"))
	gid, gerr := strconv.Atoi(cmp.Or(group, "0"))
	if err == nil && gerr == nil && (both || uid == 0) {
		return &user.ExecUser{Uid: uid, Gid: gid}, nil
	}
	passwd, err := e.file(ctx, b.id, "/etc/passwd")
	if err != nil {
		return nil, err
	}
	groups, err := e.file(ctx, b.id, "/etc/group")
	if err != nil {
		return nil, err
	}
	u, err := user.GetExecUser(b.user, nil, passwd, groups)
	if err != nil {
		return nil, fmt.Errorf("the image has no user %q: %w", b.user, err)
	}
	return u, nil
}

// file returns the content of a file in a container, empty if it does not exist.
func (e *Endpoint) file(ctx context.Context, id, name string) (io.Reader, error) {
	at := name
	for range maxLinks {
		r, err := e.api.CopyFromContainer(ctx, id, client.CopyFromContainerOptions{SourcePath: at})
		if cerrdefs.IsNotFound(err) {
			return strings.NewReader(""), nil
		}
		if err != nil {
			return nil, failed("read "+name, err)
		}
		defer r.Content.Close()
		if link := r.Stat.LinkTarget; r.Stat.Mode&fs.ModeSymlink != 0 { // it was not followed
			if at = path.Join(path.Dir(at), link); path.IsAbs(link) {
				at = path.Clean(link)
			}
			continue
		}
		t := tar.NewReader(r.Content)
		if _, err := t.Next(); err != nil {
			return nil, failed("read "+name, err)
		}
		text, err := io.ReadAll(io.LimitReader(t, 1<<20))
		return bytes.NewReader(text), failed("read "+name, err)
	}
	return nil, fmt.Errorf("failed to read %s: more than %d links", name, maxLinks)
}

const maxLinks = 8

// pieceSize is the size, in bytes, of the archives that files are sent in. Before each the owner is looked up again. An
// archive is read completely before it is sent: if reading fails, no part of a file is in the container, and the
// engine never waits for reading. (Docker locks a container while it unpacks, so that no other node can
// inspect it or take its task over.) A larger file is sent alone, while it is read.
const pieceSize = 8 << 20

// translate renames the entries of a tar as in a container, gives them to a user, and sends them in archives. It adds
// directories that are not among dirs, which were sent before, and adds those to dirs: the task may have changed their
// modes meanwhile.
func translate(r io.Reader, u *user.ExecUser, dirs map[string]bool, send func(io.Reader) error) error {
	p := packer{send: send, user: u, dirs: dirs, links: map[string]bool{}}
	p.out = tar.NewWriter(&p.piece)
	top := []tar.Header{
		{Name: "local", Mode: 0o755}, {Name: "secrets", Mode: 0o700}, {Name: "alloc", Mode: 0o755},
		{Name: "alloc/data", Mode: 0o755},
	}
	if len(dirs) > 0 {
		top = nil
	}
	for _, d := range top {
		d.Typeflag = tar.TypeDir
		if err := p.add(&d, nil); err != nil {
			return err
		}
	}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return p.flush()
		}
		if err != nil {
			return err
		}
		name := h.Name
		if h.Name, err = inside(name); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeLink {
			if h.Linkname, err = inside(h.Linkname); err != nil {
				return err
			}
		}
		if err := p.add(h, in); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
}

type packer struct {
	piece       bytes.Buffer
	out         *tar.Writer // to piece
	send        func(io.Reader) error
	user        *user.ExecUser
	dirs, links map[string]bool // by name
}

// add adds an entry, and directories that it needs. Nothing is unpacked through a link of the same stream.
func (p *packer) add(h *tar.Header, content io.Reader) error {
	for dir := path.Dir(h.Name); dir != "."; dir = path.Dir(dir) {
		if p.links[dir] {
			return errors.New("it is below a link")
		}
	}
	if dir := path.Dir(h.Name); dir != "." && !p.dirs[dir] {
		if err := p.add(&tar.Header{Name: dir, Mode: 0o755, Typeflag: tar.TypeDir}, nil); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeLink:
	case tar.TypeDir:
		p.dirs[h.Name] = true
		h.Name += "/"
	case tar.TypeSymlink:
		p.links[h.Name] = true
	default:
		return errors.New("it is no file, directory or link")
	}
	h.Uid, h.Gid, h.Uname, h.Gname = p.user.Uid, p.user.Gid, "", ""
	if h.Typeflag != tar.TypeReg {
		h.Size = 0
	}
	if int64(p.piece.Len())+h.Size > pieceSize {
		if err := p.flush(); err != nil {
			return err
		}
	}
	if h.Size > pieceSize {
		return p.stream(h, content)
	}
	if err := p.out.WriteHeader(h); err != nil || h.Size == 0 {
		return err
	}
	_, err := io.Copy(p.out, content)
	return err
}

// flush sends what is packed, if anything is.
func (p *packer) flush() error {
	if p.piece.Len() == 0 {
		return nil
	}
	if err := p.out.Close(); err != nil {
		return err
	}
	packed := p.piece.Bytes()
	p.piece = bytes.Buffer{}
	p.out = tar.NewWriter(&p.piece)
	return p.send(bytes.NewReader(packed))
}

// stream sends a file as it is read.
func (p *packer) stream(h *tar.Header, content io.Reader) error {
	in, out := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := p.send(in)
		in.CloseWithError(io.ErrClosedPipe) // ends the copy where the engine has not read to the end
		sent <- err
	}()
	w := tar.NewWriter(out)
	err := w.WriteHeader(h)
	if err == nil {
		_, err = io.Copy(w, content)
	}
	if err == nil {
		err = w.Close()
	}
	out.CloseWithError(err)
	if failed := <-sent; err == nil || errors.Is(err, io.ErrClosedPipe) {
		return failed
	}
	return err
}

// inside is a name of Put's in the container.
func inside(name string) (string, error) {
	clean := path.Clean(name)
	switch top, _, _ := strings.Cut(clean, "/"); top {
	case "local", "secrets":
		return clean, nil
	case "data":
		return "alloc/" + clean, nil
	}
	return "", fmt.Errorf("%q is not below local, secrets or data", name)
}
