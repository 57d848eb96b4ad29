// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package host

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
)

func configOf(s *sshdtest.Server) ssh.Config {
	hop := ssh.Hop{Host: s.Host, Port: s.Port, User: s.User, HostKeys: []string{s.HostKey}}
	return ssh.Config{Hop: hop, KeyFile: s.KeyFile}
}

// here returns Config.Programs with path as the program for this architecture.
func here(path string) map[string]string {
	return map[string]string{runtime.GOARCH: path}
}

// local creates a program with about the given size in bytes: a script that prints its own path.
func local(t *testing.T, size int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	content := append([]byte("#!/bin/sh\necho $0 runs\nexit\n"), make([]byte, size)...)
	must.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// start copies the program to the host if necessary, runs it, and returns the path that it prints (see local).
func start(ctx context.Context, c ssh.Config, dir string, programs map[string]string) (*Link, string, error) {
	l, err := upload(ctx, Config{SSH: c, Programs: programs, Options: shim.Options{Dir: dir}})
	if err != nil {
		return nil, "", err
	}
	defer l.close()
	path, err := l.conn.ReadLine()
	return l, strings.TrimSuffix(path, " runs"), err
}

func TestProgram_IsCopiedOnce(t *testing.T) {
	server := sshdtest.Start(t, sshdtest.Unprivileged(), sshdtest.Shell("/bin/bash"))
	c := configOf(server)
	programs := map[string]string{"amd64": local(t, 10<<20), "arm64": local(t, 9<<20)}
	host, path, err := start(t.Context(), c, "", programs)
	must.NoError(t, err)
	test.Eq(t, runtime.GOARCH, host.Arch)
	test.Eq(t, server.Home+"/.local/share/outrider-remote", host.Dir)
	before, err := os.Stat(path)
	must.NoError(t, err)
	test.Eq(t, 0o700, before.Mode().Perm())
	for _, dir := range []string{"bin", "", "..", "../.."} {
		info, err := os.Stat(filepath.Join(host.Dir, dir))
		must.NoError(t, err)
		test.Eq(t, 0o700, info.Mode().Perm(), test.Sprint(dir))
	}

	again, _, err := start(t.Context(), c, "", programs)
	must.NoError(t, err)
	test.Eq(t, [2]string{host.Arch, host.Dir}, [2]string{again.Arch, again.Dir})
	after, err := os.Stat(path)
	must.NoError(t, err)
	test.True(t, os.SameFile(before, after))
	test.Eq(t, []string{filepath.Base(path)}, files(t, filepath.Dir(path)))
}

func TestProgram_DamagedCopyIsReplaced(t *testing.T) {
	c := configOf(sshdtest.Start(t))
	dir := filepath.Join(t.TempDir(), "new", "dir")
	programs := here(local(t, 1000))
	_, path, err := start(t.Context(), c, dir, programs)
	must.NoError(t, err)
	content, err := os.ReadFile(path)
	must.NoError(t, err)
	for _, damage := range []func() error{ // as after a power failure
		func() error { return os.Truncate(path, 0) },
		func() error { return os.Truncate(path, 999) },
		func() error { return os.Chmod(path, 0o600) },
	} {
		must.NoError(t, damage())
		_, _, err = start(t.Context(), c, dir, programs)
		must.NoError(t, err)
		again, err := os.ReadFile(path)
		must.NoError(t, err)
		must.Eq(t, content, again)
	}
}

func TestProgram_IsCopiedToAHostWithFewTools(t *testing.T) {
	tools := t.TempDir()
	must.NoError(t, os.Chmod(filepath.Dir(tools), 0o755))
	for _, tool := range []string{"uname", "id", "mkdir", "cat", "rm", "wc", "head", "chmod", "mv", "ls", "sha256sum"} {
		path, err := exec.LookPath(tool)
		must.NoError(t, err)
		must.NoError(t, os.Symlink(path, filepath.Join(tools, tool)))
	}
	c := configOf(sshdtest.Start(t, sshdtest.Env("PATH="+tools)))
	dir := filepath.Join(t.TempDir(), "dir")
	_, _, err := start(t.Context(), c, dir, here(local(t, 100_000)))
	must.NoError(t, err)

	must.NoError(t, os.Remove(filepath.Join(tools, "head")))
	head := []byte("#!/bin/sh\nexec /usr/bin/head -c 4096\n")
	must.NoError(t, os.WriteFile(filepath.Join(tools, "head"), head, 0o755))
	_, _, err = start(t.Context(), c, dir+"2", here(local(t, 10<<20)))
	must.ErrorContains(t, err, "the copy of the program in "+dir+"2/bin is damaged: it has 4096 of ")
	must.SliceEmpty(t, files(t, dir+"2/bin"))

	must.NoError(t, os.Remove(filepath.Join(tools, "sha256sum")))
	_, _, err = start(t.Context(), c, dir+"3", here(local(t, 100_000)))
	must.EqError(t, err, "the host has no sha256sum: install coreutils")
}

// tmpfs mounts a tmpfs until the end of the test.
func tmpfs(t *testing.T, flags uintptr, options string) string {
	t.Helper()
	testsupport.NeedRoot(t)
	dir := t.TempDir()
	must.NoError(t, unix.Mount("outrider-test", dir, "tmpfs", flags, options))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

func TestProgram_ErrorsAreOneSentence(t *testing.T) {
	noexec := tmpfs(t, unix.MS_NOEXEC, "mode=755")
	small := tmpfs(t, 0, "mode=755,size=1m")
	full := tmpfs(t, 0, "mode=755,size=64k")
	must.NoError(t, os.WriteFile(filepath.Join(full, "file"), make([]byte, 60<<10), 0o600))
	readOnly := tmpfs(t, unix.MS_RDONLY, "mode=755")
	file := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(file, nil, 0o600))

	server := configOf(sshdtest.Start(t))
	programs := here(local(t, 10<<20))
	for _, c := range []struct{ dir, want string }{
		{noexec,
			"the host runs no programs from " + noexec + "/bin, which may be mounted noexec: set dir to another directory ("},
		{small, "can't be written to " + small + "/bin on the host (head: "},
		{full, "can't be written to " + full + "/bin on the host (head: "},
		{readOnly, "the directory " + readOnly + "/bin can't be made on the host: set dir to a directory that the user can"},
		{file, "the directory " + file + "/bin can't be made on the host: "},
	} {
		_, _, err := start(t.Context(), server, c.dir, programs)
		must.ErrorContains(t, err, c.want)
		test.StrNotContains(t, err.Error(), "\n")
		if testsupport.Exists(c.dir + "/bin") {
			test.SliceEmpty(t, files(t, c.dir+"/bin"))
		}
	}
	_, _, err := start(t.Context(), server, small, here("/no/program"))
	test.ErrorContains(t, err, "failed to open the driver program for the host: open /no/program: ")
}

// Another user of the host may have created the directory first, with another program.
func TestProgram_OtherUsersCanNotReplaceIt(t *testing.T) {
	server := sshdtest.Start(t, sshdtest.Unprivileged())
	const own, other = 54321, 65534
	scratch := filepath.Join(server.Home, "scratch")
	make := func(path string, owner, group int, mode os.FileMode) {
		path = filepath.Join(scratch, path)
		must.NoError(t, os.MkdirAll(path, 0o755))
		must.NoError(t, os.Chown(path, owner, group))
		must.NoError(t, os.Chmod(path, mode))
	}
	make("", own, own, 0o777|os.ModeSticky)
	make("theirs", other, other, 0o755)
	make("theirs/ours", own, own, 0o755)
	make("root", 0, 0, 0o755)
	make("root/ours", own, own, 0o755)
	make("root/bin", 0, 0, 0o755)
	make("open", own, own, 0o777)
	make("open/ours", own, own, 0o755)
	make("sticky", own, own, 0o777|os.ModeSticky)
	make("group", own, 0, 0o775)
	make("group/ours", own, own, 0o755)
	make("private-group", own, own, 0o775)
	make("private-group/ours", own, own, 0o755)
	make("root-group", 0, 0, 0o775)
	make("root-group/ours", own, own, 0o755)
	make("listed", own, own, 0o775)
	make("listed/ours", own, own, 0o755)
	// user::rwx user:65534:rwx group::r-x mask::rwx other::r-x, in the format of posix_acl_xattr.h
	acl := []byte("\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x02\x00\x07\x00\xfe\xff\x00\x00" +
		"\x04\x00\x05\x00\xff\xff\xff\xff" + "\x10\x00\x07\x00\xff\xff\xff\xff" + "\x20\x00\x05\x00\xff\xff\xff\xff")
	must.NoError(t, unix.Setxattr(filepath.Join(scratch, "listed"), "system.posix_acl_access", acl, 0))
	make("ours", own, own, 0o755)
	make("ours/bin", other, other, 0o755)
	must.NoError(t, os.Symlink("theirs/ours", filepath.Join(scratch, "link")))

	c := configOf(server)
	programs := here(local(t, 0))
	for dir, unsafe := range map[string]string{
		"theirs/ours": "theirs", "root": "root/bin", "open": "open", "open/ours": "open", "sticky": "sticky",
		"group": "group", "group/ours/new": "group", "private-group": "private-group",
		"root-group/ours": "root-group", "listed/ours": "listed",
		"ours": "ours/bin", "link": "theirs", ".": "",
	} {
		_, _, err := start(t.Context(), c, filepath.Join(scratch, dir), programs)
		want := "other users of the host can change " + filepath.Join(scratch, unsafe) + ", so "
		test.ErrorContains(t, err, want, test.Sprint(dir))
	}
	for _, dir := range []string{"root/ours", "private-group/ours", "new dir/*"} {
		_, path, err := start(t.Context(), c, filepath.Join(scratch, dir), programs)
		must.NoError(t, err, must.Sprint(dir))
		must.StrHasPrefix(t, filepath.Join(scratch, dir, "bin", "nomad-driver-remote-"), path)
	}
}

func TestProgram_RefusesAnUnsupportedHost(t *testing.T) {
	tools := t.TempDir()
	server := sshdtest.Start(t, sshdtest.Env("PATH="+tools+":/usr/bin:/bin"))
	programs := map[string]string{"amd64": local(t, 0)}
	for script, want := range map[string]string{
		"[ $1 = -m ] && echo riscv64 || echo Linux": "architecture riscv64: only x86_64 and aarch64 are supported",
		"[ $1 = -m ] && echo aarch64 || echo Linux": "no program for the host's architecture arm64: add one to ",
		"echo FreeBSD":  "the host runs FreeBSD: only Linux is supported",
		"exit 3":        "the remote command ended with status 3",
		"kill -9 $PPID": " was lost: ",
	} {
		must.NoError(t, os.WriteFile(filepath.Join(tools, "uname"), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
		_, _, err := start(t.Context(), configOf(server), "/dir", programs)
		test.ErrorContains(t, err, want)
	}
}

func TestProgram_MatchesTheHostsArchitecture(t *testing.T) {
	tools, arch, machine := t.TempDir(), "arm64", "aarch64"
	if runtime.GOARCH == arch {
		arch, machine = "amd64", "x86_64"
	}
	uname := []byte("#!/bin/sh\n[ $1 = -m ] && echo " + machine + " || echo Linux\n")
	must.NoError(t, os.WriteFile(filepath.Join(tools, "uname"), uname, 0o755))
	c := configOf(sshdtest.Start(t, sshdtest.Env("PATH="+tools+":/usr/bin:/bin")))
	dir := filepath.Join(t.TempDir(), "dir")
	programs := map[string]string{"amd64": local(t, 1), "arm64": local(t, 2)}
	l, path, err := start(t.Context(), c, dir, programs)
	must.NoError(t, err)
	must.Eq(t, arch, l.Arch)
	got, err := os.ReadFile(path)
	must.NoError(t, err)
	want, err := os.ReadFile(programs[arch])
	must.NoError(t, err)
	must.Eq(t, want, got)

	self, err := os.Executable()
	must.NoError(t, err)
	programs[arch] = self
	_, _, err = start(t.Context(), c, dir+"2", programs)
	must.ErrorContains(t, err, "the driver program "+self+" is for EM_")
	must.StrHasSuffix(t, "the host's architecture is "+arch, err.Error())
	_, err = os.Lstat(dir + "2")
	must.ErrorIs(t, err, fs.ErrNotExist)
}

func TestProgram_RemovesAPartialCopy(t *testing.T) {
	server := sshdtest.Start(t)
	dir := filepath.Join(t.TempDir(), "dir")
	programs := here(local(t, 20<<20))
	link := server.Link()
	c := configOf(server)
	c.Port = link.Port
	link.CutAfter(5 << 20)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failed := make(chan error)
	go func() {
		_, _, err := start(ctx, c, dir, programs)
		failed <- err
	}()
	link.WaitCut()
	testsupport.Eventually(t, "a part has arrived", func() bool { return len(files(t, dir+"/bin")) == 1 })
	must.StrContains(t, files(t, dir+"/bin")[0], ".tmp-")
	cancel()
	must.ErrorContains(t, <-failed, "failed to copy the driver program to the host: the connection to ")

	// another node copies the program while the host still waits for the disconnected node
	_, path, err := start(t.Context(), configOf(server), dir, programs)
	must.NoError(t, err)
	link.Restore() // so the host notices the end of the first connection
	testsupport.Eventually(t, "the part is removed", func() bool { return len(files(t, dir+"/bin")) == 1 })
	must.Eq(t, filepath.Base(path), files(t, dir+"/bin")[0])
	want, err := os.ReadFile(programs[runtime.GOARCH])
	must.NoError(t, err)
	got, err := os.ReadFile(path)
	must.NoError(t, err)
	must.True(t, bytes.Equal(want, got))
}

func TestProgram_IsCopiedBySeveralNodesConcurrently(t *testing.T) {
	c := configOf(sshdtest.Start(t))
	dir := filepath.Join(t.TempDir(), "dir")
	programs := here(local(t, 5<<20))
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			_, _, err := start(t.Context(), c, dir, programs)
			test.NoError(t, err)
		})
	}
	all.Wait()
	must.Len(t, 1, files(t, dir+"/bin"))
}

func TestProgram_RemovesOldFiles(t *testing.T) {
	c := configOf(sshdtest.Start(t))
	dir := filepath.Join(t.TempDir(), "dir")
	must.NoError(t, os.MkdirAll(dir+"/bin", 0o700))
	must.NoError(t, os.MkdirAll(dir+"/runs", 0o700))
	for name, age := range map[string]time.Duration{
		"bin/nomad-driver-remote-used": 20 * 24 * time.Hour, "bin/nomad-driver-remote-old": 40 * 24 * time.Hour,
		"bin/nomad-driver-remote-x.tmp-new": 30 * time.Minute, "bin/nomad-driver-remote-x.tmp-old": 2 * time.Hour,
		"bin/other": 40 * 24 * time.Hour, "runs/x.json": 40 * 24 * time.Hour,
		"runs/x.taken": 40 * 24 * time.Hour, "runs/y.taken": 20 * 24 * time.Hour,
		"runs/.new-1": 40 * 24 * time.Hour, "runs/.new-2": time.Minute,
	} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		then := time.Now().Add(-age)
		must.NoError(t, os.Chtimes(filepath.Join(dir, name), then, then))
	}
	programs := here(local(t, 0))
	_, path, err := start(t.Context(), c, dir, programs)
	must.NoError(t, err)
	want := []string{filepath.Base(path), "nomad-driver-remote-used", "nomad-driver-remote-x.tmp-new", "other"}
	must.SliceContainsAll(t, want, files(t, dir+"/bin"))
	must.Eq(t, []string{".new-2", "x.json", "y.taken"}, files(t, dir+"/runs"))

	// each connection of a node counts as use of the program
	then := time.Now().Add(-40 * 24 * time.Hour)
	must.NoError(t, os.Chtimes(path, then, then))
	_, _, err = start(t.Context(), c, dir, programs)
	must.NoError(t, err)
	info, err := os.Stat(path)
	must.NoError(t, err)
	must.True(t, info.ModTime().After(then.Add(time.Hour)))
}
