// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

const nobody = 65534

// archiveOf returns an archive with one file.
func archiveOf(t *testing.T, name string, content []byte) io.Reader {
	t.Helper()
	var buffer bytes.Buffer
	out := tar.NewWriter(&buffer)
	header := &tar.Header{Name: name, Mode: 0o666, Size: int64(len(content)), ModTime: time.Now().Add(time.Hour)}
	must.NoError(t, out.WriteHeader(header))
	_, err := out.Write(content)
	must.NoError(t, err)
	must.NoError(t, out.Close())
	return &buffer
}

// ofTask returns the directory of a task that runs as the user "nobody".
func ofTask(t *testing.T) string {
	t.Helper()
	testsupport.NeedRoot(t)
	above := t.TempDir()
	for dir := above; dir != os.TempDir(); dir = filepath.Dir(dir) {
		must.NoError(t, os.Chmod(dir, 0o711))
	}
	must.NoError(t, makeTree(above, "task", []string{"local"}, nobody, nobody, 0o700))
	return filepath.Join(above, "task")
}

// withTars runs a test with each tar program on this machine that a host may have.
func withTars(t *testing.T, f func(t *testing.T, program string)) {
	for _, program := range []string{"tar", "busybox"} {
		t.Run(program, func(t *testing.T) {
			path, err := exec.LookPath(program)
			if err != nil {
				t.Skip(err)
			}
			tools := t.TempDir()
			must.NoError(t, os.Symlink(path, filepath.Join(tools, "tar")))
			must.NoError(t, os.Chmod(filepath.Dir(tools), 0o755))
			t.Setenv("PATH", tools+":"+os.Getenv("PATH"))
			f(t, program)
		})
	}
}

func TestUnpack_HasOnlyTheRightsOfTheTask(t *testing.T) { withTars(t, unpackSafely) }

func unpackSafely(t *testing.T, program string) {
	dir := ofTask(t)
	mode := map[string]uint32{"tar": 0o666, "busybox": 0o666 &^ umask()}[program]
	outside := filepath.Join(filepath.Dir(dir), "outside")
	must.NoError(t, os.Mkdir(outside, 0o755))
	victim := filepath.Join(outside, "victim")
	must.NoError(t, os.WriteFile(victim, []byte("root's"), 0o644))
	for name, plant := range map[string]func() error{
		"local/link":    func() error { return os.Symlink(victim, filepath.Join(dir, "local/link")) },
		"local/hard":    func() error { return os.Link(victim, filepath.Join(dir, "local/hard")) },
		"local/d/new":   func() error { return os.Symlink(outside, filepath.Join(dir, "local/d")) },
		"../outside/up": func() error { return nil },
		"fifo":          func() error { return unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666) },
	} {
		must.NoError(t, plant())
		_ = unpack(t.Context(), archiveOf(t, name, []byte("new")), dir, nobody, nobody)
	}
	content, err := os.ReadFile(victim)
	must.NoError(t, err)
	must.Eq(t, "root's", string(content))
	entries, err := os.ReadDir(outside)
	must.NoError(t, err)
	must.Len(t, 1, entries)
	for _, name := range []string{"local/link", "local/hard", "fifo"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		must.NoError(t, err)
		must.Eq(t, "new", string(content), must.Sprint(name))
		var st unix.Stat_t
		must.NoError(t, unix.Stat(filepath.Join(dir, name), &st))
		must.Eq(t, nobody, st.Uid)
		must.Eq(t, mode, st.Mode&0o777, must.Sprint(name))
	}
}

func umask() uint32 {
	mask := unix.Umask(0)
	unix.Umask(mask)
	return uint32(mask)
}

func TestUnpack_ErrorsAreOneSentence(t *testing.T) { withTars(t, unpackFails) }

func unpackFails(t *testing.T, _ string) {
	dir := ofTask(t)
	must.NoError(t, unix.Mount("outrider-test", dir, "tmpfs", 0, "size=64k,mode=777"))
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	err := unpack(t.Context(), archiveOf(t, "big", make([]byte, 1<<20)), dir, nobody, nobody)
	must.ErrorContains(t, err, "tar: ")

	reader, writer := io.Pipe() // an archive that does not end
	defer writer.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = io.CopyN(writer, archiveOf(t, "part", make([]byte, 32<<10)), 20<<10)
		cancel()
	}()
	must.Error(t, unpack(ctx, reader, dir, nobody, nobody))

	words := bytes.NewReader([]byte("no archive, but words"))
	must.ErrorContains(t, unpack(t.Context(), words, dir, nobody, nobody), "tar")
	t.Setenv("PATH", "/none")
	must.ErrorContains(t, unpack(t.Context(), archiveOf(t, "x", nil), dir, nobody, nobody), "the host has no tar program")
}
