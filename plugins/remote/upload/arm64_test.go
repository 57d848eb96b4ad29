// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package upload

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
	"github.com/outrider-dev/outrider/plugins/remote/simulate"
	"github.com/outrider-dev/outrider/plugins/remote/simulate/simulatetest"
	"github.com/outrider-dev/outrider/plugins/remote/sshhost"
)

// arm64Var is set in the namespace where the kernel runs programs for arm64, and is the directory with them.
const arm64Var = "OUTRIDER_TEST_ARM64"

// TestARM64_RunsTasksUnderQEMU has a simulated host of arm64, in a user namespace with a binfmt_misc of its own, as
// lab/release has it for the other binaries.
func TestARM64_RunsTasksUnderQEMU(t *testing.T) {
	if dir := os.Getenv(arm64Var); dir != "" {
		runsOnARM64(t, filepath.Join(dir, "outrider-shim"))
		return
	}
	qemu, err := exec.LookPath("qemu-aarch64-static")
	if err != nil {
		t.Skip("no qemu-aarch64-static")
	}
	testsupport.NeedRoot(t)
	if v1, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.clone_children"); len(v1) == 0 {
		t.Skip("QEMU's user mode can neither clone into a cgroup of v2 nor become a subreaper")
	}
	dir, err := os.MkdirTemp("", "arm64-") // a path that is short enough for a socket, and open
	must.NoError(t, err)
	t.Cleanup(func() { test.NoError(t, os.RemoveAll(dir)) })
	must.NoError(t, os.Chmod(dir, 0o755))
	for pkg, arch := range map[string]string{"plugins/remote/cmd/outrider-shim": "arm64", "lab/release/qemuexec": ""} {
		cmd := exec.Command("go", "build", "-o", dir, "github.com/outrider-dev/outrider/"+pkg)
		if cmd.Env = append(os.Environ(), "CGO_ENABLED=0"); arch != "" {
			cmd.Env = append(cmd.Env, "GOARCH="+arch)
		}
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
	}
	out, err := exec.Command(qemu, dir+"/outrider-shim", "version").CombinedOutput()
	must.NoError(t, err)
	must.StrContains(t, string(out), "for linux/arm64\n")

	self, err := os.Executable()
	must.NoError(t, err)
	const script = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
if [ -d /sys/fs/cgroup/unified ]; then mount -t tmpfs none /sys/fs/cgroup/unified; fi
printf %s ':arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:'\
'\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"$1/qemuexec:OPF" \
  >/proc/sys/fs/binfmt_misc/register
exec "$2" -test.run '^TestARM64_RunsTasksUnderQEMU$' -test.v
`
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script, "sh", dir, self)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, arm64Var+"="+dir)
	all := []syscall.SysProcIDMap{{Size: 1<<32 - 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		UidMappings: all, GidMappings: all, GidMappingsEnableSetgroups: true, Pdeathsig: syscall.SIGKILL,
	}
	out, err = cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	must.StrContains(t, string(out), "--- PASS: TestARM64_RunsTasksUnderQEMU", must.Sprint(string(out)))
}

// runsOnARM64 runs a task from its start to its end.
func runsOnARM64(t *testing.T, shim string) {
	host := simulatetest.New(t, simulate.Options{Config: []string{"SetEnv PATH=/home/root/tools:/usr/bin:/bin"}})
	tools := host.Path("/home/root/tools")
	must.NoError(t, os.Mkdir(tools, 0o755))
	must.NoError(t, os.WriteFile(tools+"/uname", []byte("#!/bin/sh\n[ $1 = -m ] && echo aarch64 || echo Linux\n"), 0o755))
	up := New(newClient(t, host, simulate.Root), "")
	up.programs = programs{"arm64": {plain: func() (io.ReadCloser, error) { return os.Open(shim) }}}
	h := sshhost.New(sshhost.Config{Dial: up.Dial, Lease: time.Minute})
	t.Cleanup(func() { must.NoError(t, h.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	facts, err := h.Probe(ctx)
	must.NoError(t, err)
	must.Eq(t, "arm64", facts.Arch)

	key := endpoint.Key{Job: "job", Group: "group", Task: "web"}
	r := &endpoint.Record{Name: key.Name("0123456789ab"), Key: key, Owner: endpoint.Owner{TaskID: "a"}}
	spec := &endpoint.Spec{Task: "web", Process: &endpoint.Process{
		Command: "/bin/sh", Args: []string{"-c", "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.1; done"},
	}}
	must.NoError(t, h.Create(ctx, r))
	ref := endpoint.Ref{Name: r.Name, Epoch: 1}
	must.NoError(t, h.Prepare(ctx, ref, spec, nil))
	_, err = h.Start(ctx, ref, spec)
	must.NoError(t, err)
	log, err := h.Logs(ctx, r.Name, "stdout", endpoint.Place{}, 0)
	must.NoError(t, err)
	defer log.Close()
	chunk, err := log.Next()
	must.NoError(t, err)
	must.Eq(t, "ready\n", string(chunk.Data))
	var out sink
	exit, err := h.Exec(ctx, ref, &endpoint.ExecOptions{Command: []string{"/bin/sh", "-c", "pwd; exit 3"}, Stdout: &out})
	must.NoError(t, err)
	test.Eq(t, 3, exit.Code)
	test.StrHasSuffix(t, "/web\n", out.String())
	r, err = h.Stop(ctx, ref, "SIGTERM", 30*time.Second, "")
	must.NoError(t, err)
	test.Eq(t, 7, r.Exit.Code)
	chunk, err = log.Next()
	must.NoError(t, err)
	test.Eq(t, "bye\n", string(chunk.Data))
	must.NoError(t, h.Remove(ctx, ref))
}

type sink struct{ bytes.Buffer }

func (*sink) Close() error { return nil }
