// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// taskDir creates a task's directory with a file at each path. The content of a file is its base name.
func taskDir(t *testing.T, paths ...string) (dir string, root *os.Root) {
	t.Helper()
	dir = t.TempDir()
	for _, path := range paths {
		path = filepath.Join(dir, path)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(filepath.Base(path)), 0o640))
	}
	root, err := os.OpenRoot(dir)
	must.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return dir, root
}

// copied archives the files that have changed since the given time. It returns a line for each file: path, mode, owner,
// and content or link target.
func copied(t *testing.T, root *os.Root, below string, since time.Time) string {
	t.Helper()
	paths, err := filesOf(root, below, since)
	must.NoError(t, err)
	var buffer bytes.Buffer
	must.NoError(t, archive(&buffer, root, paths))
	var lines []string
	for in := tar.NewReader(&buffer); ; {
		h, err := in.Next()
		if err == io.EOF {
			return strings.Join(lines, "\n")
		}
		must.NoError(t, err)
		content, err := io.ReadAll(in)
		must.NoError(t, err)
		lines = append(lines, fmt.Sprintf("%s %o %d:%d %s", h.Name, h.Mode, h.Uid, h.Gid, string(content)+h.Linkname))
	}
}

func TestFiles_IncludeOnlyFilesFromNomad(t *testing.T) {
	dir, root := taskDir(t, "local/lib/config.json", "secrets/nomad_token", "secrets/.nomad-mount", "private/of-nomad",
		"tmp/x", "alloc/data", "etc/app.conf", "local/old")
	must.NoError(t, os.Chmod(filepath.Join(dir, "etc/app.conf"), 0o755|os.ModeSetuid))
	must.NoError(t, os.Symlink("/etc/shadow", filepath.Join(dir, "local/link")))
	socket, err := net.Listen("unix", filepath.Join(dir, "secrets/api.sock"))
	must.NoError(t, err)
	t.Cleanup(func() { _ = socket.Close() })
	past := time.Now().Add(-time.Hour)
	must.NoError(t, os.Chtimes(filepath.Join(dir, "local/old"), past, past))

	must.Eq(t, strings.Join([]string{
		"etc 755 0:0 ", "etc/app.conf 755 0:0 app.conf", "local/lib 755 0:0 ", "local/lib/config.json 640 0:0 config.json",
		"local/link 777 0:0 /etc/shadow", "local/old 640 0:0 old", "secrets/nomad_token 640 0:0 nomad_token",
		"tmp/x 640 0:0 x",
	}, "\n"), copied(t, root, ".", time.Time{}))
	must.Eq(t, "secrets/nomad_token 640 0:0 nomad_token", copied(t, root, "secrets", time.Time{}))
	must.Eq(t, "", copied(t, root, ".", time.Now().Add(time.Hour)))
	must.StrNotContains(t, copied(t, root, ".", past.Add(time.Minute)), "local/old")
	must.Eq(t, "", copied(t, root, "missing", time.Time{}))
}

// A host may have only busybox tar, which reads fewer formats than GNU tar.
func TestArchive_IsReadableByAnyTar(t *testing.T) {
	long := strings.Repeat("d", 100) + "/" + strings.Repeat("ü", 100)
	_, root := taskDir(t, long, "local/ü")
	paths, err := filesOf(root, ".", time.Time{})
	must.NoError(t, err)
	var buffer bytes.Buffer
	must.NoError(t, archive(&buffer, root, paths))
	for _, program := range [][]string{{"tar"}, {"busybox", "tar"}} {
		if _, err := exec.LookPath(program[0]); err != nil {
			continue
		}
		dir := t.TempDir()
		cmd := exec.Command(program[0], append(program[1:], "-x", "-p", "-m", "-f", "-")...)
		cmd.Dir, cmd.Stdin = dir, bytes.NewReader(buffer.Bytes())
		said, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprintf("%s", said))
		for _, path := range []string{long, "local/ü"} {
			content, err := os.ReadFile(filepath.Join(dir, path))
			must.NoError(t, err, must.Sprint(program))
			must.Eq(t, filepath.Base(path), string(content))
		}
	}
}

// Another task of the group may replace files between the calls of filesOf and archive.
func TestArchive_FollowsNoReplacedFiles(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	must.NoError(t, os.WriteFile(outside, []byte("classified"), 0o600))
	dir, root := taskDir(t, "local/a", "local/b", "local/c/d")
	paths, err := filesOf(root, ".", time.Time{})
	must.NoError(t, err)
	must.NoError(t, os.Remove(filepath.Join(dir, "local/a")))
	must.NoError(t, os.Symlink(outside, filepath.Join(dir, "local/a")))
	must.NoError(t, os.Remove(filepath.Join(dir, "local/b")))
	must.NoError(t, os.RemoveAll(filepath.Join(dir, "local/c")))
	must.NoError(t, os.Symlink(filepath.Dir(outside), filepath.Join(dir, "local/c")))
	must.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(outside), "d"), []byte("classified"), 0o600))
	var buffer bytes.Buffer
	err = archive(&buffer, root, paths)
	must.ErrorContains(t, err, "local/c/d")
	must.StrNotContains(t, buffer.String(), "classified")
}

// The error must not be io.EOF: that would look like the regular end of the archive.
func TestArchive_FailsIfAFileIsTruncated(t *testing.T) {
	dir, root := taskDir(t, "local/a")
	must.NoError(t, os.WriteFile(filepath.Join(dir, "local/a"), make([]byte, 1<<20), 0o600))
	paths, err := filesOf(root, ".", time.Time{})
	must.NoError(t, err)
	cut := false
	err = archive(writer(func(b []byte) {
		if !cut {
			cut = true
			must.NoError(t, os.Truncate(filepath.Join(dir, "local/a"), 10))
		}
	}), root, paths)
	must.ErrorContains(t, err, "local/a: it was truncated")
	must.False(t, errors.Is(err, io.EOF))
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}
