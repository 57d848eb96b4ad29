package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/supervisor"
	"github.com/outrider-dev/outrider/internal/core/task"
)

// TaskEvents is part of drivers.DriverPlugin.
func (d *Driver) TaskEvents(ctx context.Context) (<-chan *drivers.TaskEvent, error) {
	events, err := d.eventer.TaskEvents(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.listeners++
	unheard := d.unheard
	d.unheard = nil
	d.mu.Unlock()
	context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.listeners--
	})
	go func() { // ends when they are taken, or with ctx
		for _, e := range unheard {
			d.emit(e)
		}
	}()
	return events, nil
}

// maxUnheard bounds what is kept for a Nomad that does not listen.
const maxUnheard = 1000

// event shows a sentence among the task's events. It is kept until Nomad waits
// for the task for the first time: while an agent recovers its tasks it listens
// to events already, and throws them away. Of a task that it stops, Nomad may have
// thrown away the allocation before (job stop -purge): there the sentence is part of the
// exit, which needs no event of ours.
func (d *Driver) event(h *handle, format string, args ...any) {
	e := taskEvent(h.config, fmt.Sprintf(format, args...))
	h.mu.Lock()
	if h.stopped != nil {
		h.remarks = append(h.remarks, e.Message)
		late := h.told
		h.mu.Unlock()
		if late {
			d.logger.Warn("too late for the task's events: "+e.Message, "task", e.TaskID)
		}
		return
	}
	early := !h.waitedFor
	if early {
		h.early = append(h.early, e)
	}
	h.mu.Unlock()
	if !early {
		h.heardAt(d.emit(e))
	}
}

func taskEvent(cfg *drivers.TaskConfig, message string) *drivers.TaskEvent {
	return &drivers.TaskEvent{TaskID: cfg.ID, TaskName: cfg.Name, AllocID: cfg.AllocID, Timestamp: time.Now(), Message: message}
}

// waitedFor tells what was kept.
func (d *Driver) waitedFor(h *handle) {
	h.mu.Lock()
	early := h.early
	h.waitedFor, h.early = true, nil
	h.mu.Unlock()
	for _, e := range early {
		h.heardAt(d.emit(e))
	}
}

// How long an exit waits for the events before it, and after a start of the plugin
// for Nomad to listen to any. Nomad takes the events of all tasks one by one, and
// writes each to its disk.
const (
	hearing   = 100 * time.Millisecond // from an event on, when there is no other
	taking    = 25 * time.Millisecond  // more for each that was told shortly before it
	backlog   = 2 * time.Second        // and for all of these at most
	listening = time.Second
)

// heard gives Nomad the time to take what was told of a task: events travel apart
// from the exit, and Nomad drops those that come after the end of an allocation.
func (d *Driver) heard(ctx context.Context, h *handle) {
	h.mu.Lock()
	by, stopped := h.heardBy, h.stopped
	h.mu.Unlock()
	if time.Now().After(by) || stopped != nil {
		return
	}
	for end := time.Now().Add(listening); !d.listened(); time.Sleep(10 * time.Millisecond) {
		if !h.recovered || time.Now().After(end) || ctx.Err() != nil {
			return
		}
		by = time.Now().Add(hearing)
	}
	select {
	case <-time.After(time.Until(by)):
	case <-ctx.Done():
	}
}

func (d *Driver) listened() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listeners > 0
}

// emit tells Nomad, or keeps it until Nomad listens: after a start of the plugin
// it recovers tasks before it does, and the eventer drops what nobody hears. It
// returns when Nomad will have taken it, as far as can be told.
func (d *Driver) emit(e *drivers.TaskEvent) (heardBy time.Time) {
	now := time.Now()
	d.mu.Lock()
	if d.listeners == 0 {
		if len(d.unheard) < maxUnheard {
			d.unheard = append(d.unheard, e)
		}
		d.mu.Unlock()
		return now.Add(hearing)
	}
	heardBy = now.Add(hearing)
	if next := d.heardBy.Add(taking); next.After(heardBy) {
		heardBy = next
	}
	if latest := now.Add(hearing + backlog); heardBy.After(latest) {
		heardBy = latest
	}
	d.heardBy = heardBy
	d.mu.Unlock()
	if err := d.eventer.EmitEvent(e); err != nil {
		d.logger.Warn("failed to emit task event", "task", e.TaskID, "error", err)
	}
	return heardBy
}

func (d *Driver) supervisorEvent(e supervisor.Event) {
	if h, err := d.handle(e.ID); err == nil {
		d.event(h, "%s", e.Message)
	}
}

// noticeOOM says that processes were killed while the task itself goes on, or
// ended well all the same.
func (d *Driver) noticeOOM(h *handle, kills uint64) {
	h.mu.Lock()
	more := kills > max(h.oomKills, h.state.OOMKills)
	h.oomKills = max(h.oomKills, kills)
	h.mu.Unlock()
	if more {
		d.event(h, "OOM: a process of the task was killed %s", h.memoryInWords())
	}
}

func (h *handle) memoryInWords() string {
	if limit := h.current().Limits.MemoryMax; limit > 0 {
		return fmt.Sprintf("at %d MiB of memory", limit>>20)
	}
	return "since the host is out of memory"
}

// taskExited says what the exit code alone does not.
func (d *Driver) taskExited(id string, e *task.Exit) {
	h, err := d.handle(id)
	if err != nil {
		return
	}
	explained := h.ended(e)
	if !e.OOMKilled {
		d.noticeOOM(h, e.OOMKills)
	}
	switch {
	case h.stopOver() != nil && (e.Lost || e.Signal != 0 && !e.OOMKilled):
		// Nomad's own event has it all
	case e.Lost:
		d.event(h, "Lost: it is not known how the task ended: %s", e.Reason)
	case e.OOMKilled:
		d.event(h, "OOM: killed %s", h.memoryInWords())
	case e.Signal != 0:
		d.event(h, "Killed by signal %d (%s)", e.Signal, unix.SignalName(unix.Signal(e.Signal)))
	}
	go func() { // it may read files, and the exits of other tasks are told meanwhile
		defer close(explained)
		<-h.begun // the state as planned may not be that of the run
		i, ok := optional[ExitReporter](d)
		if !ok {
			return
		}
		if said := i.ReportExit(Ended{Run: h.run(), Exit: e, Stopped: h.stopOver() != nil}); said != "" {
			d.event(h, "%s", said)
		}
	}()
}

// explaining is for how long an exit waits for what the driver has to say of it.
const explaining = 10 * time.Second

// explained waits for that, where the task has ended and its end was told.
func (d *Driver) explained(ctx context.Context, h *handle) {
	h.mu.Lock()
	explained := h.explained
	h.mu.Unlock()
	if explained == nil {
		return
	}
	select {
	case <-explained:
	case <-time.After(explaining):
		d.logger.Warn("exit is told without what the driver would say of it, which takes too long", "task", h.config.ID)
	case <-ctx.Done():
	}
}
