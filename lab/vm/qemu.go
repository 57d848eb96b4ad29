// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func findQEMU() (string, error) {
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return "", errors.New("qemu-system-x86_64 is missing (apt-get install --no-install-recommends qemu-system-x86 kmod)")
	}
	return qemu, nil
}

// port is the name of the virtio serial port, as in init.sh.
const port = "outrider.vm"

// machine is a QEMU process. Its sockets have no names and its files are in memory, so nothing remains if QEMU or this
// process is killed.
type machine struct {
	port    net.Conn // the virtio serial port
	cmd     *exec.Cmd
	console *tail // the last output on the serial port ttyS0
	qemuOut *tail // the last output of QEMU itself

	printed chan struct{} // closed when console is complete

	kill func()        // kills QEMU, and returns when it has exited
	done chan struct{} // closed when QEMU has exited
	err  error         // how QEMU ended, once done is closed
}

// kernelArgs turn an oops into a panic, and a panic into the end of QEMU, so both are noticed immediately. Mitigations
// are off: they protect nothing here, and are slow when emulated.
const kernelArgs = "console=ttyS0 quiet oops=panic panic=-1 mitigations=off random.trust_cpu=on " +
	"rcupdate.rcu_expedited=1"

func startMachine(
	ctx context.Context, qemu string, k kernel, initrd []byte, a accelerator, o Options,
) (_ *machine, err error) {
	var files []*os.File // QEMU's files, from descriptor 3 on
	m := &machine{console: &tail{}, qemuOut: &tail{}, printed: make(chan struct{}), done: make(chan struct{})}
	var ours []net.Conn
	defer func() {
		for _, f := range files {
			f.Close()
		}
		if err != nil {
			for _, c := range ours {
				c.Close()
			}
		}
	}()
	socket := func() (net.Conn, int, error) {
		mine, theirs, err := socketPair()
		if err != nil {
			return nil, 0, err
		}
		files, ours = append(files, theirs), append(ours, mine)
		return mine, 2 + len(files), nil
	}
	var consoleConn net.Conn
	fds := map[*net.Conn]int{&m.port: 0, &consoleConn: 0}
	for conn := range fds {
		if *conn, fds[conn], err = socket(); err != nil {
			return nil, err
		}
	}
	image, err := memoryFile("initramfs", initrd)
	if err != nil {
		return nil, err
	}
	files = append(files, image)
	initrdFD := 2 + len(files)

	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", "q35", "-accel", a.name, "-cpu", a.cpu,
		"-smp", fmt.Sprint(o.CPUs), "-m", fmt.Sprint(o.Memory),
		"-kernel", k.image, "-initrd", fmt.Sprintf("/proc/self/fd/%d", initrdFD), "-append", kernelArgs + " " + a.args,
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", fds[&consoleConn]), "-serial", "chardev:console",
		"-device", "virtio-serial-pci", "-chardev", fmt.Sprintf("socket,id=port,fd=%d", fds[&m.port]),
		"-device", "virtserialport,chardev=port,name=" + port,
		"-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
		"-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
	}
	if o.Disk != "" {
		args = append(args,
			"-drive", "if=none,id=disk,format=raw,file="+strings.ReplaceAll(o.Disk, ",", ",,"),
			"-device", "virtio-blk-pci,drive=disk")
	}
	m.cmd = exec.Command(qemu, args...)
	cmd := m.cmd
	cmd.ExtraFiles = files
	cmd.Stdout, cmd.Stderr = m.qemuOut, m.qemuOut
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // ^C reaches only this process, which then ends QEMU cleanly
		Pdeathsig: syscall.SIGKILL,
	}
	if err := m.run(ctx, cmd); err != nil {
		return nil, fmt.Errorf("failed to start qemu: %w", err)
	}
	go func() { // ends with QEMU
		defer close(m.printed)
		io.Copy(m.console, consoleConn)
		consoleConn.Close()
	}()
	return m, nil
}

// run starts QEMU, and kills it when ctx ends.
func (m *machine) run(ctx context.Context, cmd *exec.Cmd) error {
	err := cmd.Start()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	m.kill = func() {
		cmd.Process.Kill()
		<-m.done
	}
	go func() {
		defer close(m.done)
		m.err = cmd.Wait()
		stop()
	}()
	return nil
}

// end waits until the machine has switched itself off, and kills it if that takes longer than patience.
func (m *machine) end(patience time.Duration) error {
	select {
	case <-m.done:
		return nil
	case <-time.After(patience):
		m.kill()
		return fmt.Errorf("the VM did not switch itself off within %v and was killed; the end of its console:\n%s",
			patience, m.console)
	}
}

func (m *machine) close() {
	m.port.Close()
}

// explain adds the machine's state to an error: its end, if it has ended, QEMU's output, and the last of its console.
func (m *machine) explain(err error) error {
	select {
	case <-m.done:
	case <-time.After(10 * time.Second): // QEMU's connections end just before the process
	}
	var b strings.Builder
	select {
	case <-m.done:
		<-m.printed
		fmt.Fprintf(&b, "; the VM has ended")
		if m.err != nil {
			fmt.Fprintf(&b, " (qemu: %v)", m.err)
		}
	default:
	}
	if s := strings.TrimSpace(m.qemuOut.String()); s != "" {
		fmt.Fprintf(&b, "; the output of qemu: %s", s)
	}
	if s := strings.TrimSpace(m.console.String()); s != "" {
		fmt.Fprintf(&b, "; the end of its console:\n%s", s)
	}
	return fmt.Errorf("%w%s", err, b.String())
}

// socketPair returns the two ends of a connection, one for this process and one for QEMU.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("failed to create a socket: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "socket")
	f := os.NewFile(uintptr(fds[0]), "socket")
	defer f.Close()
	mine, err := net.FileConn(f)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("failed to create a socket: %w", err)
	}
	return mine, theirs, nil
}

// memoryFile returns a file in memory, without a path.
func memoryFile(name string, data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("failed to create a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(data); err != nil {
		f.Close()
		return nil, fmt.Errorf("failed to create a file in memory: %w", err)
	}
	return f, nil
}
