// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package upload

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/shim/protocol"
	"github.com/outrider-dev/outrider/plugins/remote/simulate"
	"github.com/outrider-dev/outrider/plugins/remote/simulate/simulatetest"
	"github.com/outrider-dev/outrider/plugins/remote/ssh"
)

func TestMain(m *testing.M) {
	Main()
	simulate.Main()
	os.Exit(m.Run())
}

// where the shim is by default
const stateDir = "/home/remote/.local/state/outrider-remote"

func newClient(t *testing.T, h *simulate.Host, user string) *ssh.Client {
	t.Helper()
	c, err := ssh.New(ssh.Config{
		Host: h.Address, Port: h.Port, User: user, KeyFile: h.KeyFile, HostKeys: []string{h.HostKey},
	})
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, c.Close()) })
	return c
}

// asRoot runs a script on the host.
func asRoot(t *testing.T, h *simulate.Host, script string) {
	t.Helper()
	_, err := newClient(t, h, simulate.Root).Run(t.Context(), nil, script)
	must.NoError(t, err)
}

// serves dials, and waits until the shim serves.
func serves(t *testing.T, h *Host) net.Conn {
	t.Helper()
	conn, err := h.Dial(t.Context())
	must.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	var got []byte
	for b := make([]byte, 1); !bytes.HasSuffix(got, []byte(protocol.Banner)); got = append(got, b...) {
		_, err := io.ReadFull(conn, b)
		must.NoError(t, err, must.Sprintf("after %q", got))
	}
	return conn
}

// files are the names in the directory of shims.
func files(t *testing.T, h *simulate.Host, stateDir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(h.Path(stateDir + "/bin"))
	must.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// name is that of this program's copy.
func name(t *testing.T) string {
	t.Helper()
	sum, _, err := own[runtime.GOARCH].sum()
	must.NoError(t, err)
	return "outrider-shim-" + sum
}

// packed is this program, packed.
var packed = sync.OnceValue(func() *program {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
	f, err := os.Open("/proc/self/exe")
	if err == nil {
		_, err = io.Copy(w, f)
	}
	if err != nil || w.Close() != nil {
		panic(err)
	}
	return &program{packed: b.Bytes()}
})

func TestDial_CopiesTheShimOnce(t *testing.T) {
	host := simulatetest.New(t, simulate.Options{Shell: "/bin/bash"})
	must.NoError(t, os.WriteFile(host.Path("/home/remote/.bashrc"), []byte("echo Welcome\n"), 0o644))
	h := New(newClient(t, host, simulate.User), "")
	serves(t, h)
	must.Eq(t, []string{name(t)}, files(t, host, stateDir))
	path := host.Path(stateDir + "/bin/" + name(t))
	before, err := os.Stat(path)
	must.NoError(t, err)
	test.Eq(t, 0o700, before.Mode().Perm())
	for _, dir := range []string{"bin", "", "..", "../.."} {
		info, err := os.Stat(host.Path(filepath.Join(stateDir, dir)))
		must.NoError(t, err)
		test.Eq(t, 0, info.Mode().Perm()&0o066, test.Sprint(dir))
	}

	serves(t, h)
	serves(t, New(newClient(t, host, simulate.User), ""))
	after, err := os.Stat(path)
	must.NoError(t, err)
	test.True(t, os.SameFile(before, after))
	test.Eq(t, before.ModTime(), after.ModTime())

	// a loss of power left a file without its content, or with another one
	for _, content := range []string{"\x7fELF", "#!/bin/sh\necho outrider-shim, build other\n"} {
		must.NoError(t, os.Remove(path))
		must.NoError(t, os.WriteFile(path, []byte(content), 0o755))
		serves(t, h)
		must.Eq(t, []string{name(t)}, files(t, host, stateDir))
	}
}

func TestDial_CopiesTheShimByCsh(t *testing.T) {
	shell, err := exec.LookPath("tcsh")
	if err != nil {
		t.Skip(err)
	}
	host := simulatetest.New(t, simulate.Options{Shell: shell})
	serves(t, New(newClient(t, host, simulate.User), ""))
	must.Eq(t, []string{name(t)}, files(t, host, stateDir))
}

func TestDial_CopiesWithAndWithoutGzip(t *testing.T) {
	host := simulatetest.New(t, simulate.Options{Config: []string{"SetEnv PATH=/home/remote/tools"}})
	tools := host.Path("/home/remote/tools")
	must.NoError(t, os.Mkdir(tools, 0o755))
	for _, tool := range []string{"uname", "mkdir", "cat", "rm", "wc", "chmod", "mv", "ls", "sync"} {
		path, err := exec.LookPath(tool)
		must.NoError(t, err)
		must.NoError(t, os.Symlink(path, filepath.Join(tools, tool)))
	}
	for _, dir := range []string{"/home/remote/plain", "/home/remote/unpacked"} {
		h := New(newClient(t, host, simulate.User), dir)
		h.programs = programs{runtime.GOARCH: packed()}
		serves(t, h)
		test.Eq(t, []string{name(t)}, files(t, host, dir))
		path, err := exec.LookPath("gzip")
		must.NoError(t, err)
		_ = os.Symlink(path, filepath.Join(tools, "gzip")) // for the second one
	}
}

func TestDial_MistakeIsOneSentence(t *testing.T) {
	host := simulatetest.New(t, simulate.Options{})
	asRoot(t, host, `for m in noexec size=1m; do
		mkdir /home/remote/$m && mount -t tmpfs -o $m,mode=700,uid=$(id -u remote) tmpfs /home/remote/$m || exit; done
		mkdir -m 700 /home/remote/closed; mkdir /home/remote/closed2; mkdir -m 755 /home/remote/closed2/bin
		echo >/home/remote/file`)
	for _, c := range []struct{ dir, want string }{
		{"/home/remote/noexec", "runs no programs from /home/remote/noexec/bin, which is mounted noexec: set state_dir to"},
		{"/home/remote/size=1m", "has no space for the shim, "},
		{"/home/remote/closed/x", "can't make the directory /home/remote/closed/x/bin: set state_dir to one that"},
		{"/home/remote/file", "can't make the directory /home/remote/file/bin: "},
		{"/home/remote/closed2", "can't write the shim in /home/remote/closed2/bin: set state_dir to"},
	} {
		for _, p := range []*program{own[runtime.GOARCH], packed()} {
			h := New(newClient(t, host, simulate.User), c.dir)
			h.programs = programs{runtime.GOARCH: p}
			_, err := h.Dial(t.Context())
			must.ErrorContains(t, err, c.want)
			test.StrNotContains(t, err.Error(), "\n")
		}
	}
	out, err := newClient(t, host, simulate.Root).Run(t.Context(), nil, "cd /home/remote && ls noexec/bin size=1m/bin")
	must.NoError(t, err)
	test.StrNotContains(t, string(out), "outrider-shim")
}

// Another user of the host may have made the directory first, with a program of theirs.
func TestDial_RunsNothingThatOthersCouldReplace(t *testing.T) {
	host := simulatetest.New(t, simulate.Options{})
	asRoot(t, host, `cd /home && umask 022 && mkdir -m 1777 remote/scratch && cd remote/scratch &&
		mkdir -p theirs/bin link2/theirs ours/bin open/bin group/bin && ln -s ours link && chown -h 65534 link &&
		chown -R 65534 theirs link2/theirs && chown -R remote: ours open group && chmod 777 open && chmod 1777 open/bin &&
		chgrp 0 group && chmod 775 group && cp -a ours ours2
		for d in theirs ours ours2 open; do
			printf '#!/bin/sh\ntouch /home/remote/ran\necho outrider-shim, build %s\n' `+name(t)[len("outrider-shim-"):]+` >$d/bin/`+
		name(t)+` && chmod 755 $d/bin/*; done; chown 65534 ours/bin/*; chown remote: ours2/bin/*; chmod 775 ours2/bin/*`)
	for dir, by := range map[string]string{
		"theirs": "theirs/bin", "link": "link", "link2/theirs": "link2/theirs", "link2/theirs/new/er": "link2/theirs",
		"open": "open/bin", "group": "group", "": "",
	} {
		dir, by = filepath.Join("/home/remote/scratch", dir), filepath.Join("/home/remote/scratch", by)
		_, err := New(newClient(t, host, simulate.User), dir).Dial(t.Context())
		test.ErrorContains(t, err, "could replace what is in "+dir+", since "+by+" is theirs or open to them: set state_dir")
	}
	for _, dir := range []string{"ours", "ours2", "new dir/*"} {
		serves(t, New(newClient(t, host, simulate.User), "/home/remote/scratch/"+dir))
	}
	_, err := os.Stat(host.Path("/home/remote/ran"))
	test.ErrorIs(t, err, os.ErrNotExist)
}

func TestDial_TellsAHostThatCanNotRunTheShim(t *testing.T) {
	host := simulatetest.New(t, simulate.Options{Config: []string{"SetEnv PATH=/home/remote/tools:/usr/bin:/bin"}})
	must.NoError(t, os.Mkdir(host.Path("/home/remote/tools"), 0o755))
	for uname, want := range map[string]string{
		"[ $1 = -m ] && echo riscv64 || echo Linux": "is of the architecture riscv64: the shim is there for ",
		"[ $1 = -m ] && echo amd64 || echo FreeBSD": "runs FreeBSD: only Linux is supported",
	} {
		file := host.Path("/home/remote/tools/uname")
		must.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n"+uname+"\n"), 0o755))
		_, err := New(newClient(t, host, simulate.User), "").Dial(t.Context())
		test.ErrorContains(t, err, want)
	}
	must.NoError(t, os.RemoveAll(host.Path("/home/remote/tools")))

	// a program for another machine
	h := New(newClient(t, host, simulate.User), "")
	h.programs = programs{runtime.GOARCH: {plain: func() (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader("\x7fELF junk")), nil
	}}}
	_, err := h.Dial(t.Context())
	must.ErrorContains(t, err, "the shim does not run on remote@127.0.0.1:")
	test.SliceEmpty(t, files(t, host, stateDir))
}

// halting is this program, whose second half comes when go on is closed.
func halting(goOn <-chan struct{}, reads *atomic.Int32) *program {
	p := &program{}
	p.plain = func() (io.ReadCloser, error) {
		if reads.Add(1) == 1 { // for the sum
			return os.Open("/proc/self/exe")
		}
		f, err := os.Open("/proc/self/exe")
		if err != nil {
			return nil, err
		}
		return struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(f, 1<<20), waiting(goOn), f), f}, nil
	}
	return p
}

type waiting <-chan struct{}

func (w waiting) Read([]byte) (int, error) { <-w; return 0, io.EOF }

func TestDial_NeverRunsHalfACopy(t *testing.T) {
	host := simulatetest.New(t, simulate.Options{})
	goOn := make(chan struct{})
	h := New(newClient(t, host, simulate.User), "")
	h.programs = programs{runtime.GOARCH: halting(goOn, new(atomic.Int32))}
	failed := make(chan error)
	go func() {
		_, err := h.Dial(t.Context())
		failed <- err
	}()
	testsupport.Eventually(t, "half is there", func() bool {
		found, _ := filepath.Glob(host.Path(stateDir + "/bin/outrider-shim-*.upload-*"))
		if len(found) != 1 {
			return false
		}
		info, err := os.Stat(found[0])
		return err == nil && info.Size() == 1<<20
	})
	must.NoError(t, host.KillServer()) // the shell on the host sees the end of its input
	must.ErrorContains(t, <-failed, "failed to copy the shim to remote@127.0.0.1:")
	testsupport.Eventually(t, "the half is removed", func() bool { return len(files(t, host, stateDir)) == 0 })
	close(goOn)

	// the host loses its power in the middle of a copy
	must.NoError(t, host.StartServer(t.Context()))
	goOn = make(chan struct{})
	h = New(newClient(t, host, simulate.User), "")
	h.programs = programs{runtime.GOARCH: halting(goOn, new(atomic.Int32))}
	go func() {
		_, err := h.Dial(t.Context())
		failed <- err
	}()
	testsupport.Eventually(t, "half is there", func() bool { return len(files(t, host, stateDir)) == 1 })
	must.NoError(t, host.Halt())
	must.Error(t, <-failed)
	close(goOn)
	must.Len(t, 1, files(t, host, stateDir))
	must.NoError(t, host.Boot(t.Context()))
	serves(t, New(newClient(t, host, simulate.User), ""))
	must.Eq(t, []string{name(t)}, files(t, host, stateDir))
}

func TestDial_GoesOnWithACopyThatACallDoesNotWaitFor(t *testing.T) {
	host := simulatetest.New(t, simulate.Options{})
	goOn := make(chan struct{})
	var reads atomic.Int32
	h := New(newClient(t, host, simulate.User), "")
	h.programs = programs{runtime.GOARCH: halting(goOn, &reads)}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		_, err := h.Dial(ctx)
		cancel()
		must.ErrorContains(t, err, "the shim is not on remote@")
	}
	close(goOn)
	serves(t, h)
	must.Eq(t, 2, reads.Load()) // one for the sum
}

func TestDial_SeveralNodesCopyAtOnce(t *testing.T) {
	host := simulatetest.New(t, simulate.Options{})
	var all sync.WaitGroup
	for range 4 {
		h := New(newClient(t, host, simulate.User), "")
		all.Go(func() {
			for range 2 {
				all.Go(func() { serves(t, h) })
			}
		})
	}
	all.Wait()
	must.Eq(t, []string{name(t)}, files(t, host, stateDir))
}

func TestDial_RemovesVersionsThatNothingRuns(t *testing.T) {
	host := simulatetest.New(t, simulate.Options{})
	client := newClient(t, host, simulate.User)
	_, err := client.Run(t.Context(), nil, `cd && mkdir -p "$1/bin" && cd "$1/bin" && cp /bin/sleep outrider-shim-used &&
		echo >outrider-shim-old; echo >outrider-shim-x.upload-999999; echo >outrider-shim-x.upload-1; echo >other
		./outrider-shim-used 1000 >/dev/null 2>&1 </dev/null &`, stateDir)
	must.NoError(t, err)
	serves(t, New(client, ""))
	must.SliceContainsAll(t, []string{"other", "outrider-shim-used", "outrider-shim-x.upload-1", name(t)},
		files(t, host, stateDir))
	must.Len(t, 4, files(t, host, stateDir))

	// processes of another host are not seen
	const script = `cd && cd "$1" && rm bin/* && echo >bin/outrider-shim-old && echo '{"hostname": "other"}' >host`
	_, err = client.Run(t.Context(), nil, script, stateDir)
	must.NoError(t, err)
	serves(t, New(client, ""))
	must.SliceContainsAll(t, []string{"outrider-shim-old", name(t)}, files(t, host, stateDir))
}
