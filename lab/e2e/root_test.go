// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/wheel"
	"github.com/outrider-dev/outrider/lab/rootfs"
)

// root is a bare Debian with the machine's uv, and with an agent that has no plugin yet. Tests use it as an operator
// does: with commands.
type root struct {
	*rootfs.Root
	t *testing.T
}

func newRoot(t *testing.T) *root {
	t.Helper()
	if err := rootfs.Missing(); err != nil {
		t.Skip(err)
	}
	r, err := rootfs.New(t.Context(), filepath.Join(mkdir(t), "root"), nomadBinary, t.Logf)
	must.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			log, err := r.Run(context.Background(), "journalctl -u nomad | tail -n 200")
			t.Logf("the agent's log (%v):\n%s", err, log)
		}
		test.NoError(t, r.Close())
	})
	if uv := wheel.FindUV(nil); uv != "" {
		must.NoError(t, share(uv, filepath.Join(r.Dir, "usr/local/bin/uv")))
	}
	return &root{r, t}
}

// with returns the same root for a subtest.
func (r *root) with(t *testing.T) *root { return &root{r.Root, t} }

// sh runs commands, and returns their output. They must succeed.
func (r *root) sh(commands string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	out, err := r.Run(ctx, commands)
	must.NoError(r.t, err, must.Sprintf("%s", commands))
	return out
}

// put copies files of the machine to a directory below /root.
func (r *root) put(dir string, files ...string) {
	r.t.Helper()
	to := filepath.Join(r.Dir, "root", dir)
	must.NoError(r.t, os.MkdirAll(to, 0o755))
	for _, file := range files {
		must.NoError(r.t, share(file, filepath.Join(to, filepath.Base(file))))
	}
}

// files lists all files with owner, mode and link target, but not those that Nomad, package managers and the test
// write.
func (r *root) files() []string {
	r.t.Helper()
	out := r.sh(`find / -xdev \( -path /opt/nomad/data/client -o -path /opt/nomad/data/server \
		-o -path /opt/nomad/data/alloc -o -path /var/lib/dpkg -o -path /var/lib/rpm -o -path /var/lib/apt \
		-o -path /var/log -o -path /var/cache/apt -o -path /var/cache/debconf -o -path /var/cache/ldconfig \
		-o -path /root -o -path /run/systemctl -o -path /usr/share/doc \) -prune -o -printf '%y %m %U:%G %p %l\n'
		ls -A /usr/share/doc | sed 's|^|/usr/share/doc/|'
		# a cgroup of another agent may disappear during the search
		find /sys/fs/cgroup -name "outrider-*-$(cut -c -8 /opt/nomad/data/client/client-id)*" 2>/dev/null || true`)
	return slices.Sorted(strings.Lines(out))
}

// unchanged waits until the root has the same files as before. A supervisor without tasks runs on for some seconds.
func (r *root) unchanged(before []string) {
	r.t.Helper()
	testsupport.Within(r.t, time.Minute, func() error {
		after := r.files()
		added := slices.DeleteFunc(slices.Clone(after), func(f string) bool { return slices.Contains(before, f) })
		gone := slices.DeleteFunc(slices.Clone(before), func(f string) bool { return slices.Contains(after, f) })
		if len(added)+len(gone) > 0 {
			return fmt.Errorf("added files: %q, missing files: %q", added, gone)
		}
		return nil
	})
}

// rootJob is a job with one allocation in a root.
type rootJob struct {
	*root
	id, alloc string
}

// becomes waits until the only task of the job's newest allocation has a state.
func (j *rootJob) becomes(state string) {
	j.t.Helper()
	const states = `nomad alloc status -t "{{range .TaskStates}}{{.State}}{{end}}" $(newest `
	j.sh(eventually + "eventually '" + states + j.id + ") | grep -x " + state + "'")
}
