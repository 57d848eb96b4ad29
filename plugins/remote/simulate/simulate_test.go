// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/cgroup"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/plugins/remote/shim"
	"github.com/outrider-dev/outrider/plugins/remote/simulate"
	"github.com/outrider-dev/outrider/plugins/remote/simulate/simulatetest"
)

func TestMain(m *testing.M) {
	simulate.Main()
	os.Exit(m.Run())
}

// command runs a command on the host, by OpenSSH's client.
func command(t *testing.T, h *simulate.Host, user, command string) (string, error) {
	t.Helper()
	known := filepath.Join(t.TempDir(), "known")
	line := "[" + h.Address + "]:" + strconv.Itoa(h.Port) + " " + h.HostKey + "\n" + h.Address + " " + h.HostKey + "\n"
	must.NoError(t, os.WriteFile(known, []byte(line), 0o600))
	cmd := exec.CommandContext(t.Context(), "ssh", "-F", "none", "-i", h.KeyFile, "-p", strconv.Itoa(h.Port),
		"-o", "IdentitiesOnly=yes", "-o", "UserKnownHostsFile="+known, "-o", "BatchMode=yes", "-o", "ConnectTimeout=2",
		user+"@"+h.Address, command)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	t.Logf("%s: %q %s", command, out, stderr.String())
	return strings.TrimSpace(string(out)), err
}

func TestHost_HasItsOwnUsersHomesAndProcesses(t *testing.T) {
	before, err := os.ReadFile("/etc/passwd")
	must.NoError(t, err)
	h := simulatetest.New(t, simulate.Options{})

	out, err := command(t, h, simulate.User, "whoami; pwd; echo here >~/file; hostname; echo $$")
	must.NoError(t, err)
	fields := strings.Fields(out)
	must.Len(t, 4, fields)
	test.Eq(t, []string{"remote", "/home/remote", "simulated"}, fields[:3])
	b, err := os.ReadFile(h.Path("/home/remote/file"))
	must.NoError(t, err)
	test.Eq(t, "here\n", string(b))

	out, err = command(t, h, simulate.Root, "id -u; echo ~; ls -d /run/sshd")
	must.NoError(t, err)
	test.Eq(t, "0\n/home/root\n/run/sshd", out)

	after, err := os.ReadFile("/etc/passwd")
	must.NoError(t, err)
	test.Eq(t, string(before), string(after))
}

func TestHost_ProcessesOutliveTheServerAndEndWithTheHost(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{Shell: "/bin/bash"})
	mark := testsupport.Mark()
	out, err := command(t, h, simulate.User, "setsid sleep "+mark+" >/dev/null 2>&1 </dev/null & echo $!")
	must.NoError(t, err)
	pid, err := strconv.Atoi(out)
	must.NoError(t, err)
	testsupport.WaitSleepers(t, mark, 1)
	must.Eq(t, testsupport.Sleepers(mark), []int{h.PID(pid)})

	must.NoError(t, h.KillServer())
	_, err = net.DialTimeout("tcp", h.HostPort(), time.Second)
	must.Error(t, err)
	test.Len(t, 1, testsupport.Sleepers(mark))
	must.NoError(t, h.StartServer(t.Context()))
	out, err = command(t, h, simulate.User, "ps -o stat= -C sleep,sh,bash,sshd | grep -c Z")
	test.Error(t, err)
	test.Eq(t, "0", out) // pid 1 reaps

	const boot = "cat /proc/sys/kernel/random/boot_id"
	before, err := command(t, h, simulate.User, boot)
	must.NoError(t, err)
	must.NoError(t, h.Halt())
	test.Len(t, 0, testsupport.Sleepers(mark))
	must.NoError(t, h.Boot(t.Context()))
	out, err = command(t, h, simulate.User, boot)
	must.NoError(t, err)
	test.NotEq(t, before, out)
	test.Eq(t, len(task.BootID()), len(out))
}

func TestHost_WithANetworkCanBeCutOff(t *testing.T) {
	h := simulatetest.New(t, simulate.Options{Network: true})
	c, err := net.Dial("tcp", h.HostPort())
	must.NoError(t, err)
	defer c.Close()
	_, err = io.ReadFull(c, make([]byte, 4))
	must.NoError(t, err)
	must.NoError(t, h.LinkDown())
	_, err = net.DialTimeout("tcp", h.HostPort(), 300*time.Millisecond)
	must.Error(t, err)
	must.NoError(t, h.LinkUp())
	_, err = command(t, h, simulate.User, "true")
	must.NoError(t, err)
}

func TestHost_LeavesNothing(t *testing.T) {
	before := testsupport.Descriptors(t)
	dir := filepath.Join(t.TempDir(), "host")
	h, err := simulate.Start(t.Context(), dir, simulate.Options{Network: true})
	if errors.Is(err, simulate.ErrMissing) {
		t.Skip(err)
	}
	must.NoError(t, err)
	holder := testsupport.Processes(func(args []string) bool { return len(args) == 2 && args[1] == dir })
	must.Len(t, 1, holder)
	must.True(t, hasNeighbour(t, h.Address))
	must.NoError(t, h.Stop())
	must.NoError(t, h.Stop()) // can be called again

	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must.NoError(t, err)
	test.StrNotContains(t, string(mounts), dir)
	test.StrNotContains(t, string(mounts), "/run/simulate")
	test.False(t, hasNeighbour(t, h.Address))
	test.Eq(t, before, testsupport.Descriptors(t))
	test.False(t, testsupport.Exists(dir))
	test.False(t, testsupport.Exists("/proc/"+strconv.Itoa(holder[0])))
}

// What is unmounted on this machine, such as a stick that is pulled, is not kept in use by a host.
func TestHost_KeepsNoMountOfTheMachine(t *testing.T) {
	simulatetest.New(t, simulate.Options{}) // skips
	top := t.TempDir()
	must.NoError(t, unix.Mount("tmpfs", top, "tmpfs", 0, ""))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(top, unix.MNT_DETACH)) })
	must.NoError(t, unix.Mount("", top, "", unix.MS_SHARED, "")) // as systemd makes all
	stick := filepath.Join(top, "stick")
	must.NoError(t, os.Mkdir(stick, 0o755))
	must.NoError(t, unix.Mount("tmpfs", stick, "tmpfs", 0, ""))
	dir := filepath.Join(t.TempDir(), "host")
	h, err := simulate.Start(t.Context(), dir, simulate.Options{})
	must.NoError(t, err)
	defer func() { must.NoError(t, h.Stop()) }()
	holder := testsupport.Processes(func(args []string) bool { return len(args) == 2 && args[1] == dir })
	must.Len(t, 1, holder)
	mounted := func() bool {
		mounts, err := os.ReadFile("/proc/" + strconv.Itoa(holder[0]) + "/mountinfo")
		must.NoError(t, err)
		return strings.Contains(string(mounts), " "+stick+" ")
	}
	must.True(t, mounted())
	must.NoError(t, unix.Unmount(stick, 0))
	must.False(t, mounted())
	_, err = command(t, h, simulate.User, "true")
	must.NoError(t, err)
}

// The cgroups of the tasks of two hosts have different names, since they are this machine's, and go with the host.
func TestHost_HasItsOwnCgroups(t *testing.T) {
	dirs := map[string]bool{}
	for _, name := range []string{"one", "two"} {
		h, err := simulate.Start(t.Context(), filepath.Join(t.TempDir(), "host"), simulate.Options{Name: name})
		if errors.Is(err, simulate.ErrMissing) {
			t.Skip(err)
		}
		must.NoError(t, err)
		defer func() { must.NoError(t, h.Stop()) }()
		must.StrNotContains(t, h.Block(simulate.User), "state_dir")
		_, stateDir, found := strings.Cut(h.Block(simulate.Root), `state_dir = "`)
		must.True(t, found)
		stateDir, _, _ = strings.Cut(stateDir, `"`)
		must.False(t, dirs[stateDir])
		dirs[stateDir] = true

		must.NoError(t, os.MkdirAll(h.Path(stateDir+"/objects/nomad-x"), 0o755))
		support, parent := cgroup.Detect(""), shim.CgroupParent(stateDir)
		for _, g := range []cgroup.Group{
			cgroup.TaskBelow(support, parent, "nomad-x"), cgroup.LeafBelow(support, parent, "supervisor"),
		} {
			must.NoError(t, g.Create(cgroup.Limits{}))
		}
		left := func() int {
			v2, _ := filepath.Glob("/sys/fs/cgroup/" + parent)
			v1, _ := filepath.Glob("/sys/fs/cgroup/*/" + parent)
			return len(v1) + len(v2)
		}
		must.True(t, support.Mode == cgroup.None || left() > 0)
		must.NoError(t, h.Stop())
		must.Eq(t, 0, left())
	}
}

// hasNeighbour reports whether a device of this machine is in the network of an address.
func hasNeighbour(t *testing.T, address string) bool {
	all, err := net.InterfaceAddrs()
	must.NoError(t, err)
	return slices.ContainsFunc(all, func(a net.Addr) bool {
		own, ok := a.(*net.IPNet)
		return ok && own.Contains(net.ParseIP(address))
	})
}

func TestHost_EndsWithItsProgram(t *testing.T) {
	if os.Getenv("SIMULATE_IN") != "" {
		_, err := simulate.Start(t.Context(), os.Getenv("SIMULATE_IN"), simulate.Options{})
		must.NoError(t, err)
		_, _ = os.Stdout.WriteString("started\n")
		select {}
	}
	simulatetest.New(t, simulate.Options{}) // skips
	dir := filepath.Join(t.TempDir(), "host")
	cmd := exec.Command("/proc/self/exe", "-test.run=TestHost_EndsWithItsProgram")
	cmd.Env = append(os.Environ(), "SIMULATE_IN="+dir)
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	_, err = io.ReadFull(out, make([]byte, len("started\n")))
	must.NoError(t, err)
	must.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	testsupport.Eventually(t, "the host's processes end", func() bool {
		return len(testsupport.Processes(func(args []string) bool { return len(args) == 2 && args[1] == dir })) == 0
	})
}

func TestStart_RefusesADirectoryThatExists(t *testing.T) {
	dir := t.TempDir()
	_, err := simulate.Start(context.Background(), dir, simulate.Options{})
	must.ErrorContains(t, err, "file exists")
	must.DirExists(t, dir)
}
