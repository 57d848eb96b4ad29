// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm_test

import (
	"bytes"
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
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/lab/vm"
)

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		victim()
	}
	os.Exit(m.Run())
}

// run runs a line of shell in the VM and returns what it prints.
func run(t *testing.T, v *vm.VM, line string) string {
	t.Helper()
	out, err := v.Output(t.Context(), "sh", "-ec", line)
	must.NoError(t, err, must.Sprintf("%v\n%s", err, out))
	return strings.TrimSpace(out)
}

// start boots a VM and says how long that took.
func start(t *testing.T, ctx context.Context, o vm.Options) *vm.VM {
	t.Helper()
	begin := time.Now()
	o.Progress = t.Logf
	v, err := vm.Start(ctx, o)
	must.NoError(t, err)
	t.Logf("booted Linux %s in %.1f s", v.Kernel(), time.Since(begin).Seconds())
	t.Cleanup(func() {
		test.NoError(t, v.Close())
	})
	return v
}

// TestVM_Commands shares one machine among what does it no harm.
func TestVM_Commands(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	v := start(t, context.WithoutCancel(t.Context()), vm.Options{Adapter: "FT0001"})
	for _, tc := range []struct {
		name string
		f    func(*testing.T, *vm.VM)
	}{
		{"has the host's files, and changes none", hasTheHostsFiles},
		{"is a machine as systemd leaves it", isAMachine},
		{"tells how a command ended", tellsHowACommandEnded},
		{"runs a command like the host", runsLikeTheHost},
		{"kills all of a command when its context ends", killsAllOfACommand},
		{"leaves alone what a command leaves running", leavesAlone},
		{"runs many commands at once", runsManyAtOnce},
		{"gives a slow reader all of the output", givesASlowReaderAll},
		{"has its ports", hasItsPorts},
		{"has a USB serial adapter", hasASerialAdapter},
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
	must.NoError(t, err, must.Sprint("this very program says"))
	test.StrContains(t, out, "TestVM_", test.Sprint("this very program says"))
}

func isAMachine(t *testing.T, v *vm.VM) {
	for line, want := range map[string]string{
		"id -u":                        "0",
		"uname -r":                     v.Kernel(),
		"stat -f -c %T /sys/fs/cgroup": "cgroup2fs",
		"grep -c cgroup /proc/mounts":  "1",
		"cat /sys/fs/cgroup/system.slice/cgroup.controllers": run(t, v, "cat /sys/fs/cgroup/cgroup.controllers"),
		"grep -wo landlock /sys/kernel/security/lsm":         "landlock",
		"ulimit -n":                                       "1024",
		"ulimit -Hn":                                      "524288",
		"cat /sys/class/net/lo/operstate":                 "unknown", // as when it is up
		"stat -c %F:%a /dev/null /dev/ptmx":               "character special file:666\ncharacter special file:666",
		"stat -c %F:%a /dev/shm":                          "directory:1777",
		"exec 3</dev/fuse && grep -c ^fuse /proc/modules": "1", // loaded by the open
		"modprobe -n -v dummy_hcd | grep -c insmod":       "2", // the adapter has loaded the others
		// pivot_root(2) is what runc does, and refuses to do on an initramfs
		"unshare -m sh -ec 'mount -t tmpfs t /mnt; mkdir /mnt/old /mnt/bin; " +
			"cd /mnt; pivot_root . old; echo pivoted'": "pivoted",
		// an orphan is waited for
		"sh -c '(exec sleep 0.1) & echo $!' > /run/orphan; " +
			"while test -e /proc/$(cat /run/orphan); do sleep 0.1; done; echo gone": "gone",
	} {
		test.Eq(t, want, run(t, v, line), test.Sprint(line))
	}
	test.StrHasPrefix(t, "0::/system.slice/run-", run(t, v, "cat /proc/self/cgroup"),
		test.Sprint("a command's cgroup"))
}

func tellsHowACommandEnded(t *testing.T, v *vm.VM) {
	for _, tc := range []struct {
		args []string
		want *vm.ExitError
	}{
		{[]string{"true"}, nil},
		{[]string{"sh", "-c", "exit 7"}, &vm.ExitError{Code: 7}},
		{[]string{"sh", "-c", "kill -9 $$"}, &vm.ExitError{Signal: syscall.SIGKILL}},
	} {
		err := v.Run(t.Context(), vm.Cmd{Args: tc.args})
		var got *vm.ExitError
		if errors.As(err, &got) != (tc.want != nil) || (got != nil && *got != *tc.want) {
			t.Errorf("%q: %v, want %v", tc.args, err, tc.want)
		}
	}
	for _, tc := range []struct {
		cmd  vm.Cmd
		want string
	}{
		{vm.Cmd{}, "no command"},
		{vm.Cmd{Args: []string{"no-such-program"}}, "\"no-such-program\": executable file not found"},
		{vm.Cmd{Args: []string{"/nowhere/program"}}, "/nowhere/program"},
		{vm.Cmd{Args: []string{"true"}, Dir: "/nowhere"}, "/nowhere"},
	} {
		err := v.Run(t.Context(), tc.cmd)
		var exit *vm.ExitError
		if err == nil || errors.As(err, &exit) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q in it", tc.cmd.Args, err, tc.want)
		}
	}
}

func runsLikeTheHost(t *testing.T, v *vm.VM) {
	t.Setenv("OF_THE_HOST", "yes")
	here, err := os.Getwd()
	must.NoError(t, err)
	test.Eq(t, "yes\n"+here, run(t, v, "echo $OF_THE_HOST; pwd"))
	long := strings.Repeat("a long line\n", 300_000)
	var out, errOut bytes.Buffer
	err = v.Run(t.Context(), vm.Cmd{
		Args: []string{"sh", "-c", "cat; echo $A >&2; pwd >&2"}, Env: []string{"PATH=/bin", "A=b"}, Dir: "/usr",
		Stdin: strings.NewReader(long), Stdout: &out, Stderr: &errOut,
	})
	if err != nil || out.String() != long || errOut.String() != "b\n/usr\n" {
		t.Errorf("%d bytes of %d, %q, %v", out.Len(), len(long), errOut.String(), err)
	}
	// one that reads nothing, and one that nothing is given to
	test.NoError(t, v.Run(t.Context(), vm.Cmd{Args: []string{"true"}, Stdin: strings.NewReader(long)}))
	test.NoError(t, v.Run(t.Context(), vm.Cmd{Args: []string{"cat"}}))
}

func killsAllOfACommand(t *testing.T, v *vm.VM) {
	ctx, cancel := context.WithCancel(t.Context())
	said, w := io.Pipe()
	done := make(chan error)
	go func() {
		done <- v.Run(ctx, vm.Cmd{
			Args:   []string{"sh", "-c", "setsid sh -c 'sleep 4711; :' & echo started; sleep 4711"},
			Stdout: w,
		})
	}()
	_, err := said.Read(make([]byte, 100))
	must.NoError(t, err)
	cancel()
	test.ErrorIs(t, <-done, context.Canceled, test.Sprint("it ended with"))
	run(t, v, "i=0; while pgrep -f '[s]leep 4711'; do sleep 0.1; i=$((i+1)); test $i -lt 600; done")
}

func leavesAlone(t *testing.T, v *vm.VM) {
	begin := time.Now()
	pid := run(t, v, "sleep 600 & echo $!") // it holds the output open
	took := time.Since(begin)
	test.False(t, took > 5*time.Minute, test.Sprintf("it took %v", took))
	run(t, v, "kill "+pid)
}

func runsManyAtOnce(t *testing.T, v *vm.VM) {
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

// slowReader takes a while to take the first bytes.
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
	for _, more := range []int{0, 30_000, 60_000, 90_000, 120_000, 150_000, 180_000} { // than what is on the way
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
	said, w := io.Pipe()
	done := make(chan error)
	go func() {
		done <- v.Run(ctx, vm.Cmd{Args: []string{"python3", "-uc",
			"import http.server as h; s = h.HTTPServer(('127.0.0.1', 4700), " +
				"h.SimpleHTTPRequestHandler); print('up'); s.serve_forever()"}, Stdout: w, Stderr: io.Discard})
	}()
	if _, err := said.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	go io.Copy(io.Discard, said) // the end of the line may come alone
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
	test.ErrorContains(t, err, "refused", test.Sprint("nobody listens there"))
	cancel()
	<-done
}

func hasASerialAdapter(t *testing.T, v *vm.VM) {
	got := run(t, v, "i=0; until test -c /dev/ttyUSB0; do sleep 0.1; i=$((i+1)); test $i -lt 900; done; "+
		"cat /sys/bus/usb/devices/*-1/serial; stty -F /dev/ttyUSB0 raw -echo; echo from the VM > /dev/ttyUSB0")
	test.Eq(t, "FT0001", got, test.Sprint("its serial number"))
	b := make([]byte, len("from the VM\n"))
	v.Adapter().SetReadDeadline(time.Now().Add(time.Minute))
	if n, err := io.ReadFull(v.Adapter(), b); err != nil || string(b) != "from the VM\n" {
		t.Errorf("got %q, %v", b[:n], err)
	}
}

func TestVM_ReportsAKernelPanicWithItsConsole(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	files, routines := openFiles(t), runtime.NumGoroutine()
	v := start(t, t.Context(), vm.Options{Memory: 512, CPUs: 1})
	_, err := v.Output(t.Context(), "sh", "-c", "echo c > /proc/sysrq-trigger")
	test.ErrorContains(t, err, "sysrq triggered crash", test.Sprint("the command that crashed it"))
	_, err = v.Output(t.Context(), "true")
	test.ErrorContains(t, err, "sysrq triggered crash", test.Sprint("the next command"))
	for range 2 { // the second has nothing to do
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
	cut() // as a power cut
	out, err := v.Output(t.Context(), "sleep", "60")
	test.Error(t, err, test.Sprintf("it runs commands after its context has ended: %q", out))
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
	fmt.Println("booted", v.Kernel())
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
		t.Fatalf("it says %q, %v", b[:n], err)
	}
	children := strings.Fields(run1(t, "ps", "-o", "pid=", "--ppid", fmt.Sprint(cmd.Process.Pid)))
	must.SliceLen(t, 1, children, must.Sprint("its children"))
	must.NoError(t, cmd.Process.Kill())
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		st, err := os.ReadFile("/proc/" + children[0] + "/stat")
		if err != nil || strings.Contains(string(st), ") Z ") {
			break
		}
		must.False(t, time.Now().After(end), must.Sprintf("qemu lives on: %s", st))
	}
	left, err := os.ReadDir(tmp)
	must.NoError(t, err, must.Sprint("left"))
	test.SliceEmpty(t, left, test.Sprint("left"))
}

func run1(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command(args[0], args[1:]...).Output()
	must.NoError(t, err)
	return string(out)
}

func TestStart_ReportsMistakesInASentence(t *testing.T) {
	testsupport.Long(t, "boots virtual machines")
	empty := t.TempDir()
	for _, tc := range []struct {
		name string
		env  map[string]string
		o    vm.Options
		want string
	}{
		{"a kernel that is not there", map[string]string{"LAB_VM_KERNEL": "/nowhere/kernel.deb"}, vm.Options{},
			"failed to use LAB_VM_KERNEL: stat /nowhere/kernel.deb"},
		{"a directory without a kernel", map[string]string{"LAB_VM_KERNEL": empty}, vm.Options{},
			"want boot/vmlinuz-VERSION and lib/modules/VERSION"},
		{"no package", map[string]string{"LAB_VM_KERNEL": os.Args[0]}, vm.Options{},
			"is not a Debian format archive"},
		{"no qemu", map[string]string{"PATH": empty}, vm.Options{}, "apt-get install"},
		{"a disk in no directory", nil, vm.Options{Disk: "/nowhere/disk"}, "/nowhere/disk"},
		{"more memory than there is", nil, vm.Options{Memory: 1 << 30}, "cannot allocate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for k, v := range tc.env {
				t.Setenv(k, v)
			}
			v, err := vm.Start(t.Context(), tc.o)
			if err == nil {
				v.Close()
				t.Fatal("it started")
			}
			test.StrContains(t, strings.ToLower(err.Error()), strings.ToLower(tc.want),
				test.Sprintf("error %v, want %q in it", err, tc.want))
		})
	}
}
