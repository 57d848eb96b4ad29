package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// listenVar makes the test binary a process that listens at this path, and does nothing.
const listenVar = "OUTRIDER_TEST_LISTEN"

func TestMain(m *testing.M) {
	if path := os.Getenv(listenVar); path != "" {
		if _, err := net.Listen("unix", path); err != nil {
			os.Exit(1)
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test is over
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func pair(t *testing.T) (a, b *Transport) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	var conns [2]*Transport
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		must(t, err)
		conns[i] = New(c.(*net.UnixConn))
		t.Cleanup(conns[i].Shut)
	}
	return conns[0], conns[1]
}

func TestADescriptorGoesWithItsOwnMessage(t *testing.T) {
	a, b := pair(t)
	for _, text := range []string{"one", "two", "three"} {
		r, w, err := os.Pipe()
		must(t, err)
		_, err = w.WriteString(text)
		must(t, err)
		w.Close()
		must(t, a.Send(text, r))
		r.Close()
	}
	for range 3 {
		var text string
		must(t, b.Receive(&text))
		files := b.Take(1)
		if len(files) != 1 {
			t.Fatalf("%q came with %d descriptors", text, len(files))
		}
		got, err := io.ReadAll(files[0])
		files[0].Close()
		must(t, err)
		if string(got) != text {
			t.Errorf("%q came with the descriptor of %q", text, got)
		}
	}
}

// What can't be received would be made good by the next message's descriptor.
func TestADescriptorThatCouldNotBeReceivedEndsTheConnection(t *testing.T) {
	a, b := pair(t)
	must(t, a.Send("first", os.Stdin))
	must(t, a.Send("second", os.Stdin))
	var before unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}))
	var text string
	err := b.Receive(&text)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &before))
	if !errors.Is(err, errTruncated) {
		t.Errorf("%q was received, %v", text, err)
	}
}

func listener(t *testing.T) (cmd *exec.Cmd, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "socket")
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), listenVar+"="+path)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { stdin.Close(); _ = cmd.Wait() })
	return cmd, path
}

func dial(t *testing.T, path string) *Transport {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		if err == nil {
			w := New(c)
			t.Cleanup(w.Shut)
			return w
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func TestKillPeerKillsWhoListensThoughItAcceptsNothing(t *testing.T) {
	cmd, path := listener(t)
	c := dial(t, path)
	must(t, c.OwnPeer())
	must(t, unix.Kill(cmd.Process.Pid, unix.SIGSTOP))
	pidfd, err := c.KillPeer()
	must(t, err)
	defer pidfd.Close()
	if err := cmd.Wait(); cmd.ProcessState.Sys() == nil || err == nil || err.Error() != "signal: killed" {
		t.Errorf("it ended with %v", err)
	}
	if again, err := c.KillPeer(); !errors.Is(err, ErrPeerGone) {
		t.Errorf("a second kill: %v, %v", again, err)
	}
}

func TestLostCallsSayThatTheyAreLost(t *testing.T) {
	var calls Calls[int]
	sent := make(chan struct{})
	result := make(chan error, 1)
	go func() {
		_, err := calls.Do(context.Background(), func(uint64) error { close(sent); return nil })
		result <- err
	}()
	<-sent
	calls.Lose()
	if err := <-result; !errors.Is(err, ErrLost) {
		t.Errorf("the call under way: %v", err)
	}
	if _, err := calls.Do(context.Background(), func(uint64) error { t.Error("sent"); return nil }); !errors.Is(err, ErrLost) {
		t.Errorf("the next call: %v", err)
	}
	if calls.Answer(1, 1) {
		t.Error("an answer was taken that nobody waits for")
	}
}
