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
			d.event(h, "Stopping with %s: %v", unix.SignalName(sig), err)
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
	select {
	case <-exited:
		d.waitForTree(h, deadline)
	case <-time.After(timeout):
	}
	if err := h.executor.Kill(d.ctx, id); err != nil && !errors.Is(err, supervisor.ErrUnknownTask) {
		return fmt.Errorf("failed to kill task: %w", err)
	}
	return nil
}

// waitForTree gives processes that were signalled besides the main one the rest
// of the time to end in good order.
func (d *Driver) waitForTree(h *handle, deadline time.Time) {
	if h.saved.KillMode == task.KillProcess || h.saved.KillMode == "" {
		return
	}
	for time.Now().Before(deadline) && h.signalledLeft() {
		time.Sleep(10 * time.Millisecond)
	}
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
