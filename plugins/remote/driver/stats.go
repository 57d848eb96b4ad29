// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"time"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/outrider-dev/outrider/plugins/remote/host"
)

const (
	sampleEvery = time.Second
	sampleAge   = 10 * time.Second // what is older is of a host that can't be reached
	firstSample = 500 * time.Millisecond
)

// Stats is part of core.Sampler: the last sample that came from the host. The first call waits a moment for the
// first one, if there is a connection.
func (t *remoteTask) Stats(context.Context) (*drivers.TaskResourceUsage, error) {
	t.waited.Do(func() {
		if t.host.Connected() == nil {
			return
		}
		select {
		case <-t.sampled:
		case <-time.After(firstSample):
		}
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.usage == nil || time.Since(time.Unix(0, t.usage.Timestamp)) > sampleAge {
		return nil, nil
	}
	return t.usage, nil
}

// sample takes the host's samples until the task has ended.
func (t *remoteTask) sample() {
	for !t.over() {
		link, err := t.host.Keep(t.ctx)
		if err != nil {
			return
		}
		t.sampleBy(link)
		select { // the task has ended, or the host is asked again
		case <-t.Ended():
		case <-t.ctx.Done():
		case <-time.After(sampleEvery):
		}
	}
}

// sampleBy returns when the host sends no more.
func (t *remoteTask) sampleBy(link *host.Link) {
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	usages, err := link.Driver.TaskStats(ctx, t.config.ID, sampleEvery)
	if err != nil {
		return
	}
	for usage := range usages {
		usage.Timestamp = time.Now().UnixNano() // by this node's clock
		t.mu.Lock()
		if t.usage == nil {
			close(t.sampled)
		}
		t.usage = usage
		t.mu.Unlock()
	}
}

func (t *remoteTask) over() bool {
	select {
	case <-t.Ended():
		return true
	case <-t.ctx.Done():
		return true
	default:
		return false
	}
}
