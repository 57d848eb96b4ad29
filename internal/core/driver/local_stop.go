package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// defaultSignal is what stops a task whose job names no kill_signal, as of
// Nomad's own process drivers.
const defaultSignal = unix.SIGINT

func (d *Driver) stop(h *handle, timeout time.Duration, signal string) error {
	sig := defaultSignal
	if signal != "" {
		var err error
		if sig, err = parseSignal(signal); err != nil {
			// an error would only make Nomad ask the same again
			sig = defaultSignal
			d.event(h, "stopped with %s: %v", unix.SignalName(sig), err)
		}
	}
	id := h.config.ID
	exited, err := h.executor.Exited(id)
	if err != nil {
		return nil
	}
	err = h.executor.Signal(d.ctx, id, sig, h.saved.KillMode)
	if err != nil && !errors.Is(err, supervisor.ErrEnded) && !errors.Is(err, supervisor.ErrUnknownTask) {
		d.logger.Warn("failed to signal task", "task", id, "error", err)
	}
	deadline := time.Now().Add(timeout)
	var late, left bool
	select {
	case <-exited:
		left = d.waitForTree(h, deadline)
	case <-time.After(timeout):
		late = true
	}
	if err := h.executor.Kill(d.ctx, id); err != nil && !errors.Is(err, supervisor.ErrUnknownTask) {
		return fmt.Errorf("failed to kill task: %w", err)
	}
	e := h.result()
	switch {
	case late && e != nil && e.Signal == int(unix.SIGKILL): // it has not ended by itself after all
		d.event(h, "kill_timeout of %v passed: the task was killed", timeout)
	case left:
		d.event(h, "kill_timeout of %v passed: the processes that were left of the task were killed", timeout)
	}
	return nil
}

// waitForTree gives processes that were signalled besides the main one the rest
// of the time to end in good order, and says whether any is left then.
func (d *Driver) waitForTree(h *handle, deadline time.Time) (left bool) {
	if h.saved.KillMode == task.KillProcess || h.saved.KillMode == "" {
		return false
	}
	for left = h.signalledLeft(); left && time.Now().Before(deadline); left = h.signalledLeft() {
		time.Sleep(10 * time.Millisecond)
	}
	return left
}

// signalledLeft says whether a process is left of those that the stop signal was for.
func (h *handle) signalledLeft() bool {
	st := h.current()
	if h.saved.KillMode == task.KillAll {
		empty, err := st.Group.Empty()
		return err == nil && !empty
	}
	pids, err := st.Group.Procs()
	return err == nil && slices.ContainsFunc(pids, func(pid int) bool {
		p, err := task.ReadStat(pid)
		return err == nil && p.Group == st.Identity.PID && !p.Zombie
	})
}

// parseSignal takes the names of signal(7), with or without SIG.
func parseSignal(name string) (unix.Signal, error) {
	full := strings.ToUpper(strings.TrimSpace(name))
	if !strings.HasPrefix(full, "SIG") {
		full = "SIG" + full
	}
	if sig := unix.SignalNum(full); sig != 0 {
		return sig, nil
	}
	return 0, fmt.Errorf("signal %q is not known: use a name such as \"SIGHUP\"", name)
}
