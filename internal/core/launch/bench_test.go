// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/task"
)

// small builds a small program with the launcher's role, and returns its path. It starts as fast as the supervisor's
// launcher, unlike the test binary.
func small(b *testing.B, dir string) string {
	path := filepath.Join(dir, "small")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./testdata/small")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Skipf("no small launcher can be built here: %s", out)
	}
	return path
}

// BenchmarkStart compares the times from a start to the program's first output. The variants take turns, because a
// machine's speed changes over time. The metric is the ratio to os/exec; -v prints all times. Most of a launcher's
// time is the start of the Go runtime: an empty Go program takes two thirds of it.
func BenchmarkStart(b *testing.B) {
	dir := filepath.Dir(self) // TestMain's directory, which every user can access
	const program = "/bin/echo"
	launcher := small(b, dir)
	devNull, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must.NoError(b, err)
	defer devNull.Close()
	env := os.Environ()
	for i := range 40 {
		env = append(env, "NOMAD_VARIABLE_"+string(rune('A'+i))+"=some value of a usual length")
	}
	umask := uint32(0o027)
	plain := Spec{Command: task.Command{Path: program, Env: env, Dir: "/"}}
	records := b.TempDir()
	full := plain
	full.Command.User = &task.User{UID: 65534, GID: 65534, Groups: []uint32{1, 2}}
	full.Command.Umask = &umask
	full.Command.Nice = 5
	full.Command.OOMScoreAdj = 100
	full.Command.Lookup = []string{dir + "/none", "/tmp"}
	full.Command.Rlimits = []task.Rlimit{{Resource: unix.RLIMIT_NOFILE, Soft: 1024, Hard: 4096},
		{Resource: unix.RLIMIT_CORE}}
	devices := plain
	devices.Command.Devices = []task.Device{{HostPath: "/dev/null", TaskPath: "/dev/zigbee/tty"}}
	readOnly := plain
	readOnly.Command.Mounts = []task.Mount{{Source: dir, Target: dir, ReadOnly: true}}
	volume := plain
	volume.Command.Mounts = []task.Mount{{Source: dir, Target: dir, Volume: true}}
	inRoot := plain
	inRoot.Command.Mounts = []task.Mount{{Source: dir, Target: "/outrider-volume", Volume: true}}
	isolated := plain
	isolated.Command.TaskDir = taskDir(b, "/var/lib")
	isolated.Command.Isolation = task.Isolation{Tmp: true, IPC: true, Hostname: "web",
		Files: []task.File{{Path: "/etc/resolv.conf", Content: "nameserver 10.0.0.1\n"}}}
	isolated.Command.Unveil = &task.Unveil{Defaults: true}
	isolated.Command.Seccomp = "BgAAAAAA/38=" // a filter that allows every system call
	byLauncher := func(spec *Spec, path string) func(w *os.File) func() {
		return func(w *os.File) func() {
			launcherPath = path
			p, err := Start(spec, [3]*os.File{devNull, w, devNull}, nil)
			must.NoError(b, err)
			must.NoError(b, p.Started(context.Background()))
			return func() {
				_, _ = unix.Wait4(p.PID, nil, 0, nil)
				unix.Close(p.TakePidFD())
			}
		}
	}
	variants := []struct {
		name  string
		start func(w *os.File) (wait func())
	}{
		{"fork+exec", func(w *os.File) func() {
			pid, err := syscall.ForkExec(program, []string{program}, &syscall.ProcAttr{Env: env, Files: []uintptr{devNull.Fd(),
				w.Fd(), devNull.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true}})
			must.NoError(b, err)
			return func() { _, _ = unix.Wait4(pid, nil, 0, nil) }
		}},
		{"os/exec", func(w *os.File) func() {
			cmd := exec.Command(program)
			cmd.Env, cmd.Stdout = env, w
			must.NoError(b, cmd.Start())
			return func() { _ = cmd.Wait() }
		}},
		{"launcher", byLauncher(&plain, launcher)},
		{"launcher-record", func(w *os.File) func() { // with a record, like every real task
			recorded := plain
			recorded.Record = filepath.Join(records, "record")
			wait := byLauncher(&recorded, launcher)(w)
			return func() {
				wait()
				_ = os.Remove(recorded.Record)
			}
		}},
		{"launcher-everything", byLauncher(&full, launcher)},
		{"launcher-device", byLauncher(&devices, launcher)},
		{"launcher-read-only", byLauncher(&readOnly, launcher)},
		{"launcher-volume", byLauncher(&volume, launcher)},
		{"launcher-volume-in-root", byLauncher(&inRoot, launcher)},
		{"launcher-isolated", byLauncher(&isolated, launcher)},
		{"launcher-isolated-pid", func(w *os.File) func() {
			init, err := StartInit(nil, nil)
			must.NoError(b, err)
			own := isolated
			own.Command.Isolation.PID, own.Init = true, int(init.Fd())
			wait := byLauncher(&own, launcher)(w)
			return func() {
				wait()
				endInit(b, init)
			}
		}},
		{"runc run", byRunc(b, program)},
		{"launcher-of-test-binary", byLauncher(&plain, launcherPath)},
	}
	times := make([][]time.Duration, len(variants))
	for b.Loop() {
		for i, v := range variants {
			if v.start == nil {
				continue
			}
			r, w, err := os.Pipe()
			must.NoError(b, err)
			rfd := int(r.Fd())
			w.Fd()
			begin := time.Now()
			first := make(chan time.Duration, 1)
			go func() {
				var c [1]byte
				_, _ = unix.Read(rfd, c[:])
				first <- time.Since(begin)
			}()
			wait := v.start(w)
			times[i] = append(times[i], <-first)
			wait()
			w.Close()
			r.Close()
			time.Sleep(500 * time.Microsecond)
		}
	}
	for i := range times {
		slices.Sort(times[i])
	}
	base := times[1][len(times[1])/2]
	for i, v := range variants {
		n := len(times[i])
		if n == 0 {
			continue
		}
		p50, p99 := times[i][n/2], times[i][n*99/100]
		b.Logf("%-24s p50 %7.0f us  p99 %7.0f us  %.2f of os/exec", v.name, us(p50), us(p99), float64(p50)/float64(base))
	}
	b.ReportMetric(float64(times[2][len(times[2])/2])/float64(base), "launcher/os-exec")
}

// byRunc returns a function that starts a program by runc, with the namespaces of the variant launcher-isolated-pid.
func byRunc(b *testing.B, program string) func(w *os.File) func() {
	if _, err := exec.LookPath("runc"); err != nil {
		b.Log("runc is not installed")
		return nil
	}
	bundle := b.TempDir()
	must.NoError(b, os.Mkdir(bundle+"/rootfs", 0o755))
	mounts := ""
	for _, dir := range []string{"/bin", "/lib", "/lib64", "/usr", "/etc"} {
		if _, err := os.Stat(dir); err == nil {
			mounts += fmt.Sprintf(`{"destination": %[1]q, "source": %[1]q, "type": "bind", "options": ["rbind", "ro"]}, `, dir)
		}
	}
	config := fmt.Sprintf(`{"ociVersion": "1.0.2", "hostname": "web", "root": {"path": "rootfs"},
		"process": {"args": [%q], "env": ["A=b"], "cwd": "/"},
		"mounts": [%s {"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
			{"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}],
		"linux": {"namespaces": [{"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "pid"}]}}`, program, mounts)
	must.NoError(b, os.WriteFile(bundle+"/config.json", []byte(config), 0o600))
	return func(w *os.File) func() {
		cmd := exec.Command("runc", "run", "--no-pivot", "-b", bundle, "outrider-bench")
		cmd.Stdout, cmd.Stderr = w, os.Stderr
		must.NoError(b, cmd.Start())
		return func() { must.NoError(b, cmd.Wait()) }
	}
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
