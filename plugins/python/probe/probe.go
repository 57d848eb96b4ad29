// Package probe runs programs that are asked what they are.
package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

var (
	// ErrLate is of a program that takes longer than it may.
	ErrLate = errors.New("did not answer")
	// ErrTooMuch is of a program that says more than any answer.
	ErrTooMuch = errors.New("said too much")
)

// maxOutput is more than any program says of itself, in bytes.
const maxOutput = 64 << 10

// Run runs a program to its end, for limit at most, as a user (nil: this process's own), in / and with env alone. What it
// says is returned with an error, too. The process and what it started are gone when Run returns.
//
// The error is that of ctx, wraps ErrLate or ErrTooMuch, or is that of package os/exec. It is none that
// something which the program left behind had its output open.
func Run(ctx context.Context, limit time.Duration, as *syscall.Credential, env []string, argv ...string) (stdout, stderr string, err error) {
	// Pdeathsig is of the thread that started the process, not of this process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, complaints := &bounded{full: cancel}, &bounded{full: cancel}
	cmd := exec.CommandContext(limited, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = env, "/"
	cmd.Stdout, cmd.Stderr = out, complaints
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	killGroup := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = killGroup
	cmd.WaitDelay = time.Second // for what it started and that has its output open
	err = cmd.Run()
	if cmd.Process != nil {
		_ = killGroup() // what it left behind; mostly there is nothing
	}
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil
	case err == nil:
	case ctx.Err() != nil:
		err = ctx.Err()
	case out.over || complaints.over:
		err = ErrTooMuch
	case limited.Err() != nil:
		err = fmt.Errorf("%w within %s", ErrLate, limit)
	}
	return out.text.String(), complaints.text.String(), err
}

// bounded keeps what is written until it is too much. (The buffer is not embedded: its ReadFrom
// would take everything.)
type bounded struct {
	text bytes.Buffer
	full func() // called when it is too much
	over bool
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.text.Len()+len(p) > maxOutput {
		b.over = true
		b.full()
		return 0, ErrTooMuch
	}
	return b.text.Write(p)
}
