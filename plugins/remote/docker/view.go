// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// view is the state of an object, as read from the engine.
type view struct {
	claims []*claim        // ascending
	box    *box            // nil if there is none
	top    *claim          // who owns it, nil if there is no object
	file   file            // of top
	files  map[string]file // by id of the claim, nil if they were not read
	bare   bool            // top is no container: all claims were removed, such as by `docker system prune`

	damaged []string // ids of containers that are no claims and no box, and are named as one
}

// box is the container of the program.
type box struct {
	id      string
	under   claim          // as it was when it was made
	ports   map[string]int // of the program
	network string
	state   *container.State
	bound   map[string]int // where the ports are reached
	image   string
	user    string
	made    time.Time
	lost    bool  // the engine may not know how it ended: see forgot
	limited bool  // in its memory
	logFile int64 // the size of a file of its log, in bytes; 0: no file is limited, or it is Podman's only one
}

// ran reports whether its program was ever started.
func (b *box) ran() bool { return b != nil && !stamp(b.state.StartedAt).IsZero() }

// running reports whether it runs, which Podman also tells by its state "stopping".
func (b *box) running() bool {
	return b != nil && (b.state.Running || b.state.Paused || b.state.Status == "stopping")
}

// leaving reports whether it has ended and the engine does not tell how: not yet, or since it is being removed.
func (b *box) leaving() bool {
	return b.ran() && !b.running() && stamp(b.state.FinishedAt).IsZero() && b.state.Status != container.StateCreated
}

// mayBeOOM reports whether a program was killed just now, and not by a stop: Docker may learn a moment later that it
// was for lack of memory.
func (e *Endpoint) mayBeOOM(v *view) bool {
	b := v.box
	return b.ran() && !b.running() && b.limited && b.state.ExitCode == 128+9 && !b.state.OOMKilled &&
		v.file.Reason == "" && e.clock.age(stamp(b.state.FinishedAt)) < time.Second
}

// stamp is a time of the API, zero where there is none: of year 1.
func stamp(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}

// look reads what there is of an object: three questions, or two if this process owns it.
func (e *Endpoint) look(ctx context.Context, name string) (*view, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for try := 0; ; try++ {
		r, err := e.api.ContainerList(ctx, client.ContainerListOptions{
			All: true, Filters: client.Filters{}.Add("label", labelObject+"="+name),
		})
		if err != nil {
			return nil, failed("list the containers of "+name, err)
		}
		v, err := e.view(ctx, name, r.Items)
		if err == nil && !((v.box.leaving() || e.mayBeOOM(v)) && try < 8) {
			return v, nil
		}
		// what was listed may be gone by now, or half so: somebody takes the object over, or removes it
		if err = failed("look at "+name, err); err != nil && (try == 8 || unreached(err)) {
			return nil, err
		}
		time.Sleep(time.Duration(try) * 20 * time.Millisecond)
	}
}

// view looks at the containers of one object.
func (e *Endpoint) view(ctx context.Context, name string, items []container.Summary) (*view, error) {
	v := &view{}
	for _, s := range items {
		if c := parse(s); c != nil && c.Name == name {
			v.claims = append(v.claims, c)
		} else if c == nil && slices.Contains(s.Names, "/"+name) {
			b, err := e.box(ctx, s.ID)
			if err != nil {
				return nil, err
			}
			v.box = b
		} else if slices.ContainsFunc(s.Names, func(n string) bool { return strings.HasPrefix(n, "/"+name+".e") }) {
			v.damaged = append(v.damaged, s.ID)
		} // or it has its labels from an image, or from a person
	}
	slices.SortFunc(v.claims, func(a, b *claim) int { return cmp.Compare(a.Epoch, b.Epoch) })
	return v, e.decide(ctx, v)
}

// decide finds the owner.
//
// A claim counts from its creation on if the one that it follows is still there: old ones are removed
// in ascending order, so nobody can have been the owner in between. Its owner sees that once
// more after the creation, and then writes its file. Without either, its creator came too
// late: the epochs from which it goes on have been over, or the object was removed.
func (e *Endpoint) decide(ctx context.Context, v *view) error {
	for i := len(v.claims) - 1; i >= 0; i-- {
		c := v.claims[i]
		f, ok, err := e.counts(ctx, v, c)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if f.Claim != c.id {
			f.Claim, f.Seq, f.at = "", 0, c.made // what the owner before has written
		}
		v.top, v.file = c, f
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.bare, c.Name)
		return nil
	}
	if v.box.ran() && v.box.under.Name != "" {
		// Its owner makes its claim again when it renews the lease. Is it gone, too, the lease runs out.
		c := v.box.under
		c.id, c.made, c.State = v.box.id, v.box.made, endpoint.Running
		v.top, v.file, v.bare = &c, file{Ran: true, at: e.bareSince(c.Name)}, true
	}
	return nil
}

// counts reports whether a claim counts (see decide). It returns what was written last for it, or for one that it
// follows.
func (e *Endpoint) counts(ctx context.Context, v *view, c *claim) (file, bool, error) {
	f, err := e.read(ctx, v, c)
	if err != nil || f.Seq > 0 || c.Prev == "" || v.box != nil && v.box.id == c.Prev {
		return f, true, err
	}
	for _, prev := range v.claims {
		if prev.id == c.Prev && prev.Epoch < c.Epoch {
			return e.counts(ctx, v, prev)
		}
	}
	return f, false, nil
}

// bareSince is when this process first saw an object that has lost its claims.
func (e *Endpoint) bareSince(name string) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	at, ok := e.bare[name]
	if !ok {
		at = e.clock.now()
		e.bare[name] = at
	}
	return at
}

func (e *Endpoint) box(ctx context.Context, id string) (*box, error) {
	r, err := e.api.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return nil, err
	}
	in := r.Container
	if in.State == nil || in.Config == nil || in.HostConfig == nil {
		return nil, errors.New("the engine tells nothing of the container's state")
	}
	b := &box{
		id: in.ID, state: in.State, image: in.Config.Image, made: stamp(in.Created), user: in.Config.User,
		network: string(in.HostConfig.NetworkMode), limited: in.HostConfig.Memory > 0,
	}
	if !e.clock.podman.Load() {
		b.logFile, _ = strconv.ParseInt(in.HostConfig.LogConfig.Config["max-size"], 10, 64)
	}
	// made by us: what does not parse is not there
	_ = json.Unmarshal([]byte(in.Config.Labels[labelBox]), &b.under)
	_ = json.Unmarshal([]byte(in.Config.Labels[labelPorts]), &b.ports)
	if b.lost, err = e.forgot(ctx, b); err != nil {
		return nil, err
	}
	b.bound = map[string]int{}
	for label, port := range b.ports {
		if b.network == "host" {
			b.bound[label] = port
		} else if in.NetworkSettings != nil {
			for p, bindings := range in.NetworkSettings.Ports {
				if int(p.Num()) != port || len(bindings) == 0 {
					continue
				}
				if n, err := strconv.Atoi(bindings[0].HostPort); err == nil {
					b.bound[label] = n
				}
			}
		}
	}
	return b, nil
}

// ran reports whether the program of an object was started, even if its container is gone.
func (e *Endpoint) ran(v *view) bool {
	o := e.mine(v.top)
	return v.box.ran() || v.file.Ran || v.top.State != endpoint.Starting || o != nil && o.ran
}

// record is what the view says, nil if there is no object.
func (e *Endpoint) record(v *view) *endpoint.Record {
	if v.top == nil {
		return nil
	}
	r := v.top.Record
	r.Mutable = v.file.Mutable
	r.Since = v.top.made
	r.Reason = cmp.Or(v.file.Reason, r.Reason)
	r.Lease = v.top.TTL - e.clock.age(v.file.at)
	r.More = map[string]string{}
	switch b := v.box; {
	case b == nil && v.file.Stopped:
		r.State, r.Exit = endpoint.Exited, &task.Exit{Lost: true, Reason: "it was stopped before it was started"}
	case b == nil && e.ran(v):
		r.State, r.Exit = endpoint.Exited, &task.Exit{Lost: true, Reason: "its container was removed from the engine"}
	case !b.ran():
		r.State = endpoint.Starting
	case b.running():
		r.State = endpoint.Running
		if r.GivenUp {
			r.State = endpoint.Released
		}
		r.PID = b.state.Pid
	default:
		r.State, r.Exit = endpoint.Exited, exit(b)
		if r.Exit.At.After(r.Since) {
			r.Since = r.Exit.At
		}
	}
	if v.box != nil {
		r.Started, r.Ports = stamp(v.box.state.StartedAt), v.box.bound
		r.More["container"], r.More["image"] = v.box.id, v.box.image
	}
	r.Age = e.clock.age(r.Since)
	return &r
}

// forgot reports whether a container may have ended while Docker did not run, such as by a crash of its host. Docker
// gives these exit code 255 when it starts. Only the time tells that code from a program's own: Docker creates its
// network "bridge" just after that. Without this network no exit code 255 is believed.
func (e *Endpoint) forgot(ctx context.Context, b *box) (bool, error) {
	if e.clock.podman.Load() || b.running() || b.state.ExitCode != 255 {
		return false, nil
	}
	r, err := e.api.NetworkInspect(ctx, "bridge", client.NetworkInspectOptions{})
	if cerrdefs.IsNotFound(err) {
		return true, nil
	}
	return !stamp(b.state.FinishedAt).After(r.Network.Created), err
}

// exit is how the program of a container ended. An engine reports a signal as code 128+n, as a shell does. A program
// that exits with such a code itself is reported in the same way.
func exit(b *box) *task.Exit {
	s := b.state
	x := &task.Exit{Code: s.ExitCode, OOMKilled: s.OOMKilled && s.ExitCode != 0, At: stamp(s.FinishedAt)}
	switch {
	case s.Status == container.StateCreated:
		// it was started, and is as new: Podman after a restart of its host
		x.Code, x.Lost, x.Reason = 0, true, "the engine's host was restarted"
	case x.At.IsZero():
		x.Code, x.Lost, x.Reason = 0, true, "its container is being removed from the engine"
	case b.lost:
		x.Code, x.Lost, x.Reason = 0, true, "the engine was restarted, and says 255 of what ended before"
	case s.ExitCode < 0 || s.ExitCode > 255:
		x.Code, x.Lost, x.Reason = 0, true, fmt.Sprintf("the engine does not know it (exit code %d)", s.ExitCode)
	case s.ExitCode > 128 && s.ExitCode <= 128+64:
		x.Code, x.Signal = 0, s.ExitCode-128
	}
	return x
}
