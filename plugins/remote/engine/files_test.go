// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// allocation makes the directories of an allocation with these files.
func allocation(t *testing.T, files map[string]string) taskDirs {
	t.Helper()
	d := taskDirs{AllocDir: t.TempDir(), Task: "web"}
	for _, dir := range []string{"web/local", "web/secrets", "alloc/data"} {
		must.NoError(t, os.MkdirAll(filepath.Join(d.AllocDir, dir), 0o755))
	}
	for name, text := range files {
		d.write(t, name, text)
	}
	return d
}

func TestDigest_ReadsNoMoreThanIsCopied(t *testing.T) {
	d := allocation(t, map[string]string{"web/local/large": ""})
	must.NoError(t, os.Truncate(filepath.Join(d.AllocDir, "web/local/large"), maxCopied+1)) // no space is used
	_, err := d.digest(t.Context())
	must.ErrorIs(t, err, errTooMuch)
}

func (d taskDirs) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(d.AllocDir, name)
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.WriteFile(path+".new", []byte(text), 0o644)) // as a template is rendered
	must.NoError(t, os.Rename(path+".new", path))
}

// unpack returns what an archive has: text of files, targets of links behind "-> ".
func unpack(r io.Reader) (map[string]string, error) {
	got := map[string]string{}
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			return got, err
		}
		got[h.Name] = string(text)
		if h.Typeflag == tar.TypeSymlink {
			got[h.Name] = "-> " + h.Linkname
		}
		if h.Mode&0o111 != 0 && h.Typeflag == tar.TypeReg {
			got[h.Name] += " (program)"
		}
	}
}

func (c *copier) pass(t *testing.T, d taskDirs, changed bool) map[string]string {
	t.Helper()
	var got map[string]string
	must.NoError(t, c.copy(t.Context(), d, changed, func(r io.Reader) (err error) {
		got, err = unpack(r)
		return err
	}))
	return got
}

func TestCopier_CopiesFilesDirectoriesAndLinksInside(t *testing.T) {
	d := allocation(t, map[string]string{
		"web/local/run": "#!", "web/local/sub/a.txt": "a", "web/secrets/nomad_token": "secret",
		"web/secrets/.nomad-mount": "",
		"alloc/data/shared":        "s", "alloc/logs/web.stdout.0": "no", "other/secrets/token": "no",
	})
	must.NoError(t, os.Chmod(filepath.Join(d.AllocDir, "web/local/run"), 0o4755))
	must.NoError(t, os.Mkdir(filepath.Join(d.AllocDir, "alloc/data/empty"), 0o700))
	for link, target := range map[string]string{
		"web/local/inside": "sub/a.txt", "web/local/sub/up": "../run", "web/local/dangling": "nothing",
		"web/local/out": "../secrets/nomad_token", "web/local/root": "/etc", "alloc/data/other": "../../other/secrets",
	} {
		must.NoError(t, os.Symlink(target, filepath.Join(d.AllocDir, link)))
	}
	must.NoError(t, unix.Mkfifo(filepath.Join(d.AllocDir, "alloc/data/fifo"), 0o666))
	l, err := net.Listen("unix", filepath.Join(d.AllocDir, "web/secrets/api.sock"))
	must.NoError(t, err)
	defer l.Close()
	test.Eq(t, map[string]string{
		"local/run": "#! (program)", "local/sub/": "", "local/sub/a.txt": "a", "local/inside": "-> sub/a.txt",
		"local/sub/up": "-> ../run", "local/dangling": "-> nothing", "secrets/nomad_token": "secret",
		"data/shared": "s", "data/empty/": "",
	}, new(copier).pass(t, d, false))
}

func TestCopier_FollowsNoLinkToADirectory(t *testing.T) {
	d := allocation(t, map[string]string{"other/secrets/token": "no"})
	must.NoError(t, os.Remove(filepath.Join(d.AllocDir, "alloc/data"))) // another task of the group has done that
	must.NoError(t, os.Symlink("../other/secrets", filepath.Join(d.AllocDir, "alloc/data")))
	err := new(copier).copy(t.Context(), d, false, func(io.Reader) error { return errors.New("copied") })
	must.ErrorIs(t, err, unix.ENOTDIR)
	test.StrContains(t, err.Error(), "failed to copy the task's files: open data: not a directory")
}

func TestCopier_CopiesWhatHasChanged(t *testing.T) {
	d := allocation(t, map[string]string{"web/local/a": "1", "web/local/b/c": "1", "web/secrets/t": "1"})
	c := &copier{}
	test.Len(t, 4, slices.Collect(maps.Keys(c.pass(t, d, true))), test.Sprint("the first time"))
	test.Nil(t, c.pass(t, d, true), test.Sprint("unchanged"))
	d.write(t, "web/local/b/c", "2")
	test.Eq(t, map[string]string{"local/b/": "", "local/b/c": "2"}, c.pass(t, d, true))
	must.NoError(t, os.WriteFile(filepath.Join(d.AllocDir, "web/local/b/c"), []byte("3"), 0o600))
	test.Eq(t, map[string]string{"local/b/": "", "local/b/c": "3"}, c.pass(t, d, true),
		test.Sprint("its directory has not changed, and an engine would make one up"))
	must.NoError(t, os.WriteFile(filepath.Join(d.AllocDir, "web/secrets/t"), []byte("2"), 0o600))
	refused := errors.New("the endpoint is away")
	must.ErrorIs(t, c.copy(t.Context(), d, true, func(io.Reader) error { return refused }), refused)
	test.Eq(t, map[string]string{"secrets/t": "2"}, c.pass(t, d, true), test.Sprint("after an error"))
	test.Nil(t, c.pass(t, d, true))
	test.MapLen(t, 4, c.pass(t, d, false), test.Sprint("all, for another object"))
}

func TestCopier_CopiesWhatHasChangedSinceAnotherProcessDid(t *testing.T) {
	d := allocation(t, map[string]string{"web/local/a": "1", "web/secrets/t": "1"})
	d.Copied = time.Now().Add(2 * time.Second)
	c := &copier{}
	test.Nil(t, c.pass(t, d, true))
	test.Nil(t, c.pass(t, d, true))
	c, d.Copied = &copier{}, time.Now().Add(time.Second+10*time.Millisecond)
	time.Sleep(30 * time.Millisecond)
	d.write(t, "web/local/a", "2")
	test.Eq(t, map[string]string{"local/a": "2"}, c.pass(t, d, true))
	test.Nil(t, c.pass(t, d, true))
}

func TestCopier_TriesAgainWhenAFileIsChangedMeanwhile(t *testing.T) {
	d := allocation(t, map[string]string{"alloc/data/big": string(make([]byte, 1<<20))})
	path, calls, size := filepath.Join(d.AllocDir, "alloc/data/big"), 0, 0
	must.NoError(t, new(copier).copy(t.Context(), d, false, func(r io.Reader) error {
		calls++
		_, err := r.Read(make([]byte, 1))
		must.NoError(t, err)
		if calls == 1 {
			must.NoError(t, os.Truncate(path, 100))
		}
		n, err := io.Copy(io.Discard, r)
		size = int(n)
		return err
	}))
	test.Eq(t, 2, calls)
	test.Less(t, 10000, size)
}

func TestCopier_RefusesWhatIsTooMuch(t *testing.T) {
	d := allocation(t, map[string]string{"web/local/model": ""})
	must.NoError(t, os.Truncate(filepath.Join(d.AllocDir, "web/local/model"), maxCopied+1))
	err := new(copier).copy(t.Context(), d, false, func(io.Reader) error { return nil })
	must.ErrorContains(t, err, "there are more than 100000 files or 2 GiB in local/, secrets/ and alloc/data/")
}

func TestCopier_RefusesWhatBecomesTooMuch(t *testing.T) {
	d := allocation(t, map[string]string{"alloc/data/a": string(make([]byte, 1<<20)), "alloc/data/b": ""})
	err := new(copier).copy(t.Context(), d, false, func(r io.Reader) error {
		_, err := r.Read(make([]byte, 1))
		must.NoError(t, err)
		must.NoError(t, os.Truncate(filepath.Join(d.AllocDir, "alloc/data/b"), maxCopied))
		_, err = io.Copy(io.Discard, r)
		return err
	})
	must.ErrorIs(t, err, errTooMuch)
}

func TestDigest_IsOfLocalFilesOnly(t *testing.T) {
	same := map[string]string{
		"web/local/a": "1", "web/local/b/c": "2", "web/secrets/nomad_token": "x", "alloc/data/d": "1",
	}
	digest := func(change func(d taskDirs)) string {
		d := allocation(t, same)
		if change != nil {
			change(d)
		}
		sum, err := d.digest(t.Context())
		must.NoError(t, err)
		return sum
	}
	first := digest(nil)
	for name, change := range map[string]func(d taskDirs){
		"nothing":       nil,
		"a token":       func(d taskDirs) { d.write(t, "web/secrets/nomad_token", "y") },
		"the group's":   func(d taskDirs) { d.write(t, "alloc/data/d", "2") },
		"times":         func(d taskDirs) { d.write(t, "web/local/a", "1") },
		"a link out":    func(d taskDirs) { _ = os.Symlink("/etc", filepath.Join(d.AllocDir, "web/local/etc")) },
		"another place": func(d taskDirs) { must.NoError(t, os.RemoveAll(filepath.Join(d.AllocDir, "alloc"))) },
	} {
		test.Eq(t, first, digest(change), test.Sprint(name))
	}
	seen := map[string]string{first: "nothing"}
	for name, change := range map[string]func(d taskDirs){
		"content": func(d taskDirs) { d.write(t, "web/local/a", "2") },
		"a file":  func(d taskDirs) { d.write(t, "web/local/e", "") },
		"a name": func(d taskDirs) {
			_ = os.Rename(filepath.Join(d.AllocDir, "web/local/a"), filepath.Join(d.AllocDir, "web/local/f"))
		},
		"a program": func(d taskDirs) { must.NoError(t, os.Chmod(filepath.Join(d.AllocDir, "web/local/a"), 0o755)) },
		"a link":    func(d taskDirs) { must.NoError(t, os.Symlink("a", filepath.Join(d.AllocDir, "web/local/g"))) },
	} {
		sum := digest(change)
		test.Eq(t, "", seen[sum], test.Sprint(fmt.Sprintf("%s and %s", name, seen[sum])))
		seen[sum] = name
	}
}
