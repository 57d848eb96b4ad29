// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

// hanging begins a build whose index, which has a password, does not answer, and returns when it is asked. The build
// ends with the test.
func hanging(t *testing.T, i install.Installer, p place, password string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	asked, done := make(chan struct{}), make(chan struct{})
	var once sync.Once
	at, err := url.Parse(serve(t, func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(asked) })
		<-ctx.Done()
	}))
	must.NoError(t, err)
	at.User = url.UserPassword("me", password)
	r := p.request(t, "slow")
	r.Sources, r.AllowSdists, r.Progress = index.Sources{URL: at.String()}, true, nil
	go func() {
		defer close(done)
		_, err = i.Install(ctx, r)
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-asked:
	case <-done:
		t.Fatalf("it ended: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("the index is not asked")
	}
}

func TestInstall_KeepsBuildsApart(t *testing.T) {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if os.Geteuid() != 0 || errno != 0 || version < 2 {
		t.Skip("it needs root, and a kernel with Landlock")
	}
	const password = "of-the-other-build"
	tools(t, func(t *testing.T, i install.Installer) {
		other, p := newPlace(t), newPlace(t)
		hanging(t, i, other, password)
		found := filepath.Join(p.work(), "found")
		wheeltest.Sdist{Name: "evil", Version: "1.0", Code: `
import glob, os
found = open(` + quoted(found) + `, "w")
for process in glob.glob("/proc/[0-9]*"):
    try:
        files = open(process + "/cmdline").read().split("\0")
    except OSError:
        continue
    for file in files + [process + "/cwd/requirements.txt", process + "/environ"]:
        try:
            secret = "` + password[:5] + `"+"` + password[5:] + `"
            if os.path.isfile(file) and secret in open(file, errors="replace").read():
                print("read", file, file=found)
        except OSError:
            pass
    try:
        open(process + "/cwd/../new/planted", "w").close()
    except OSError:
        pass
print("end", file=found)
found.close()
`}.Write(t, p.wheels)
		r := p.request(t, "evil")
		r.AllowSdists = true
		if _, err := i.Install(t.Context(), r); err != nil {
			t.Fatalf("%v\n%s", err, lines(err))
		}
		text, err := os.ReadFile(found)
		must.NoError(t, err, must.Sprintf("it found %q", text))
		test.Eq(t, "end\n", string(text), test.Sprintf("it found %q", text))
		_, err = os.Lstat(filepath.Join(other.env(), "planted"))
		test.Error(t, err, test.Sprint("it wrote into the environment of the other"))
	})
}

func TestInstall_KeepsNoUnmountedVolume(t *testing.T) {
	p, top := newPlace(t), t.TempDir()
	small(t, top, 1<<20, p.as)
	if err := syscall.Mount("", top, "", syscall.MS_SHARED, ""); err != nil { // as systemd has all
		t.Fatal(err)
	}
	volume := filepath.Join(top, "volume")
	must.NoError(t, os.Mkdir(volume, 0o755))
	must.NoError(t, syscall.Mount("tmpfs", volume, "tmpfs", 0, "size=4096"))
	mounted := true
	defer func() {
		if mounted {
			syscall.Unmount(volume, 0)
		}
	}()
	hanging(t, pip(t), p, "password")
	have, seen := whoHave(t, p, volume)
	must.NotEq(t, 0, have, must.Sprintf("of %d processes of the build none has it at first", seen))
	must.NoError(t, syscall.Unmount(volume, 0))
	mounted = false
	have, seen = whoHave(t, p, volume)
	must.False(t, have > 0, must.Sprintf("of %d processes of the build %d have it still", seen, have))
	test.NotEq(t, 0, seen, test.Sprintf("of %d processes of the build %d have it still", seen, have))
}

// whoHave counts the builder's processes, and those that have something mounted at a directory.
func whoHave(t *testing.T, p place, dir string) (have, seen int) {
	t.Helper()
	for _, process := range p.processes(t) {
		seen++
		if mounts, _ := os.ReadFile(process + "/mountinfo"); strings.Contains(string(mounts), " "+dir+" ") {
			have++
		}
	}
	return have, seen
}
