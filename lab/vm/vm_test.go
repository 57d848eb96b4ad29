// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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
	"golang.org/x/crypto/ssh"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/vm"
)

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		victim()
	}
	os.Exit(m.Run())
}

// run runs a line of shell in the VM and returns its output.
func run(t *testing.T, v *vm.VM, line string) string {
	t.Helper()
	out, err := v.Output(t.Context(), "sh", "-ec", line)
	must.NoError(t, err, must.Sprintf("%v\n%s", err, out))
	return strings.TrimSpace(out)
}

// start boots a VM and logs how long that took.
func start(t *testing.T, ctx context.Context, o vm.Options) *vm.VM {
	t.Helper()
	begin := time.Now()
	o.Progress = t.Logf
	v, err := vm.Start(ctx, o)
	must.NoError(t, err)
	t.Logf("booted in %.1f s", time.Since(begin).Seconds())
	t.Cleanup(func() {
		test.NoError(t, v.Close())
	})
	return v
}

// TestVM_Commands shares one machine among tests that do not harm it.
func TestVM_Commands(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	v := start(t, context.WithoutCancel(t.Context()), vm.Options{})
	for _, tc := range []struct {
		name string
		f    func(*testing.T, *vm.VM)
	}{
		{"has the host's files, and changes none", hasTheHostsFiles},
		{"is set up as by systemd", isAMachine},
		{"reports how a command ended", reportsHowACommandEnded},
		{"runs a command as the host does", runsLikeTheHost},
		{"kills all processes of a command when its context ends", killsAllOfACommand},
		{"runs many commands concurrently", runsManyConcurrently},
		{"delivers all output to a slow reader", givesASlowReaderAll},
		{"accepts connections to its ports", hasItsPorts},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.f(t, v) })
	}
}

func hasTheHostsFiles(t *testing.T, v *vm.VM) {
	file := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(file, []byte("of the host"), 0o644))
	test.Eq(t, "of the hostchanged", run(t, v,
		fmt.Sprintf("cat %[1]s; echo changed > %[1]s; cat %[1]s; echo new > %[1]s.new",
			file)),
		test.Sprint("the VM reads"))
	if b, err := os.ReadFile(file); err != nil || string(b) != "of the host" {
		t.Errorf("the host reads %q, %v", b, err)
	}
	if _, err := os.Stat(file + ".new"); !os.IsNotExist(err) {
		t.Errorf("a file of the VM is on the host: %v", err)
	}
	self, err := os.Executable()
	must.NoError(t, err)
	out, err := v.Output(t.Context(), self, "-test.list", "TestVM_")
	must.NoError(t, err, must.Sprint("this very program printed"))
	test.StrContains(t, out, "TestVM_", test.Sprint("this very program printed"))
}

func isAMachine(t *testing.T, v *vm.VM) {
	for line, want := range map[string]string{
		"id -u":                        "0",
		"stat -f -c %T /sys/fs/cgroup": "cgroup2fs",
		"grep -c cgroup /proc/mounts":  "1",
		"cat /sys/fs/cgroup/system.slice/cgroup.controllers": run(t, v, "cat /sys/fs/cgroup/cgroup.controllers"),
		"grep -wo landlock /sys/kernel/security/lsm":         "landlock",
		"ulimit -n":                                       "1024",
		"ulimit -Hn":                                      "524288",
		"cat /sys/class/net/lo/operstate":                 "unknown", // the state of a loopback that is up
		"stat -c %F:%a /dev/null /dev/ptmx":               "character special file:666\ncharacter special file:666",
		"stat -c %F:%a /dev/shm":                          "directory:1777",
		"exec 3</dev/fuse && grep -c ^fuse /proc/modules": "1", // opening the device loads the module
		"modprobe -n -v dummy_hcd | grep -c /dummy_hcd":   "1",
		// the root is not an initramfs, on which runc would fail, because it uses pivot_root(2)
		"unshare -m sh -ec 'mount -t tmpfs t /mnt; mkdir /mnt/old /mnt/bin; " +
			"cd /mnt; pivot_root . old; echo pivoted'": "pivoted",
		// process 1 reaps an orphan
		"sh -c '(exec sleep 0.1) & echo $!' > /run/orphan; " +
			"while test -e /proc/$(cat /run/orphan); do sleep 0.1; done; echo gone": "gone",
	} {
		test.Eq(t, want, run(t, v, line), test.Sprint(line))
	}
	test.StrHasPrefix(t, "0::/system.slice/run-", run(t, v, "cat /proc/self/cgroup"),
		test.Sprint("a command's cgroup"))
}

func reportsHowACommandEnded(t *testing.T, v *vm.VM) {
	test.NoError(t, v.Run(t.Context(), vm.Cmd{Args: []string{"true"}}))
	for script, want := range map[string]string{"exit 7": "7", "kill -9 $$": "KILL", "exec no-such-program": "127"} {
		var exit *ssh.ExitError
		err := v.Run(t.Context(), vm.Cmd{Args: []string{"sh", "-c", script}})
		must.True(t, errors.As(err, &exit), must.Sprint(err))
		test.Eq(t, want, cmp.Or(exit.Signal(), fmt.Sprint(exit.ExitStatus())), test.Sprint(script))
	}
}

func runsLikeTheHost(t *testing.T, v *vm.VM) {
	t.Setenv("OF_THE_HOST", "yes")
	t.Setenv("A", "it's\n$A")
	here, err := os.Getwd()
	must.NoError(t, err)
	test.Eq(t, "yes\n"+here, run(t, v, "echo $OF_THE_HOST; pwd"))
	long := strings.Repeat("a long line\n", 300_000)
	var out, errOut bytes.Buffer
	err = v.Run(t.Context(), vm.Cmd{
		Args: []string{"sh", "-c", "cat; echo \"$A\" >&2; pwd >&2"}, Dir: "/usr",
		Stdin: strings.NewReader(long), Stdout: &out, Stderr: &errOut,
	})
	if err != nil || out.String() != long || errOut.String() != "it's\n$A\n/usr\n" {
		t.Errorf("%d bytes of %d, %q, %v", out.Len(), len(long), errOut.String(), err)
	}
	// a command may leave its input unread, or have none
	test.NoError(t, v.Run(t.Context(), vm.Cmd{Args: []string{"true"}, Stdin: strings.NewReader(long)}))
	test.NoError(t, v.Run(t.Context(), vm.Cmd{Args: []string{"cat"}}))
}

func killsAllOfACommand(t *testing.T, v *vm.VM) {
	ctx, cancel := context.WithCancel(t.Context())
	printed, w := io.Pipe()
	done := make(chan error)
	go func() {
		done <- v.Run(ctx, vm.Cmd{
			Args:   []string{"sh", "-c", "setsid sh -c 'sleep 4711; :' & echo started; sleep 4711"},
			Stdout: w,
		})
	}()
	_, err := printed.Read(make([]byte, 100))
	must.NoError(t, err)
	cancel()
	test.ErrorIs(t, <-done, context.Canceled, test.Sprint("it ended with"))
	run(t, v, "i=0; while pgrep -f '[s]leep 4711'; do sleep 0.1; i=$((i+1)); test $i -lt 600; done")
}

func runsManyConcurrently(t *testing.T, v *vm.VM) {
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			want := fmt.Sprint(i)
			out, err := v.Output(t.Context(), "sh", "-c", "sleep 0.2; echo "+want)
			must.NoError(t, err, must.Sprintf("%s: %q", want, out))
			test.Eq(t, want, strings.TrimSpace(out), test.Sprintf("%s: %q", want, out))
		})
	}
	all.Wait()
}

// slowReader is an io.Writer that waits before it takes the first bytes.
type slowReader struct {
	wait time.Duration
	n    int
}

func (r *slowReader) Write(p []byte) (int, error) {
	time.Sleep(r.wait)
	r.wait = 0
	r.n += len(p)
	return len(p), nil
}

func givesASlowReaderAll(t *testing.T, v *vm.VM) {
	for _, more := range []int{0, 30_000, 60_000, 90_000, 120_000, 150_000, 180_000} { // every size exceeds all buffers
		size := 1<<20 + more
		r := &slowReader{wait: 5 * time.Second}
		if err := v.Run(t.Context(), vm.Cmd{Args: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"},
			Stdout: r}); err != nil || r.n != size {
			t.Errorf("%d bytes of %d, %v", r.n, size, err)
		}
	}
}

func hasItsPorts(t *testing.T, v *vm.VM) {
	ctx, cancel := context.WithCancel(t.Context())
	printed, w := io.Pipe()
	done := make(chan error)
	go func() {
		done <- v.Run(ctx, vm.Cmd{Args: []string{"python3", "-uc",
			"import http.server as h; s = h.HTTPServer(('127.0.0.1', 4700), " +
				"h.SimpleHTTPRequestHandler); print('up'); s.serve_forever()"}, Stdout: w, Stderr: io.Discard})
	}()
	if _, err := printed.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	go io.Copy(io.Discard, printed) // reads the newline after "up", if it comes separately
	for range 3 {
		c, err := v.Dial(t.Context(), "127.0.0.1:4700")
		must.NoError(t, err)
		fmt.Fprintf(c, "GET /vm_test.go HTTP/1.0\r\n\r\n")
		page, err := io.ReadAll(c)
		c.Close()
		must.NoError(t, err, must.Sprintf("got %.100q", page))
		test.True(t, bytes.Contains(page, []byte("package vm_test")), test.Sprintf("got %.100q", page))
	}
	_, err := v.Dial(t.Context(), "127.0.0.1:1")
	test.ErrorContains(t, err, "refused", test.Sprint("a port without a listener"))
	cancel()
	<-done
}

func TestVM_ReportsAKernelPanicWithItsConsole(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	files, routines := openFiles(t), runtime.NumGoroutine()
	v := start(t, t.Context(), vm.Options{Memory: 512, CPUs: 1})
	_, err := v.Output(t.Context(), "sh", "-c", "echo c > /proc/sysrq-trigger")
	test.ErrorContains(t, err, "sysrq triggered crash", test.Sprint("the command that crashed it"))
	_, err = v.Output(t.Context(), "true")
	test.ErrorContains(t, err, "sysrq triggered crash", test.Sprint("the next command"))
	for range 2 { // a second Close is not an error
		test.NoError(t, v.Close())
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		f, r := openFiles(t), runtime.NumGoroutine()
		if f <= files && r <= routines {
			break
		}
		if time.Now().After(end) {
			b := make([]byte, 1<<16)
			t.Fatalf("left: %d files and %d goroutines\n%s", f-files, r-routines, b[:runtime.Stack(b, true)])
		}
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must.NoError(t, err)
	return len(list)
}

func TestDisk_OutlivesTheVM(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	disk := filepath.Join(t.TempDir(), "a disk, of two machines")
	ctx, cut := context.WithCancel(t.Context())
	v := start(t, ctx, vm.Options{Memory: 512, Disk: disk})
	run(t, v, "echo kept > "+vm.DiskMount+"/file; sync; echo lost > /file")
	cut() // kills the VM, as a power cut does
	out, err := v.Output(t.Context(), "sleep", "60")
	test.Error(t, err, test.Sprintf("the VM runs commands after its context has ended: %q", out))
	v = start(t, t.Context(), vm.Options{Memory: 512, Disk: disk})
	got := run(t, v, "cat "+vm.DiskMount+"/file; ls /file || true")
	must.StrHasPrefix(t, "kept\n", got, must.Sprint("the next VM finds"))
	test.StrContains(t, got, "No such file", test.Sprint("the next VM finds"))
}

// victimEnv makes a process of this binary start a VM and wait to be killed.
const victimEnv = "OUTRIDER_VM_VICTIM"

func victim() {
	v, err := vm.Start(context.Background(), vm.Options{Memory: 512, CPUs: 1})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("booted", v)
	select {}
}

func TestVM_EndsWithItsProcess(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	tmp := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"=1", "TMPDIR="+tmp)
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	defer cmd.Wait()
	defer cmd.Process.Kill()
	b := make([]byte, 1000)
	if n, err := out.Read(b); err != nil || !bytes.HasPrefix(b[:n], []byte("booted")) {
		t.Fatalf("it printed %q, %v", b[:n], err)
	}
	children := strings.Fields(run1(t, "ps", "-o", "pid=", "--ppid", fmt.Sprint(cmd.Process.Pid)))
	must.SliceLen(t, 1, children, must.Sprint("its children"))
	must.NoError(t, cmd.Process.Kill())
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		st, err := os.ReadFile("/proc/" + children[0] + "/stat")
		if err != nil || strings.Contains(string(st), ") Z ") {
			break
		}
		must.False(t, time.Now().After(end), must.Sprintf("qemu still runs: %s", st))
	}
	left, err := os.ReadDir(tmp)
	must.NoError(t, err, must.Sprint("leftovers"))
	test.SliceEmpty(t, left, test.Sprint("leftovers"))
}

func run1(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).Output()
	must.NoError(t, err)
	return string(out)
}

func TestStart_ReportsMistakes(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	empty := t.TempDir()
	for _, tc := range []struct {
		name string
		env  map[string]string
		o    vm.Options
		want string
	}{
		{"a missing kernel", map[string]string{"LAB_VM_KERNEL": "/nowhere/kernel.deb"}, vm.Options{},
			"failed to use LAB_VM_KERNEL: stat /nowhere/kernel.deb"},
		{"no package", map[string]string{"LAB_VM_KERNEL": os.Args[0]}, vm.Options{},
			"is not a Debian format archive"},
		{"no qemu", map[string]string{"PATH": empty}, vm.Options{}, "apt-get install"},
		{"a disk in no directory", nil, vm.Options{Disk: "/nowhere/disk"}, "/nowhere/disk"},
		{"more memory than the machine has", nil, vm.Options{Memory: 1 << 30}, "cannot allocate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for k, v := range tc.env {
				t.Setenv(k, v)
			}
			v, err := vm.Start(t.Context(), tc.o)
			if err == nil {
				v.Close()
				t.Fatal("the VM started")
			}
			test.StrContains(t, strings.ToLower(err.Error()), strings.ToLower(tc.want),
				test.Sprintf("error %v, want %q in it", err, tc.want))
		})
	}
}
