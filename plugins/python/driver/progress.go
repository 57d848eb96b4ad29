// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// quiet is the time until the first event of a build that goes on. It is longer each time: Nomad keeps ten events of a
// task.
const quiet = 20 * time.Second

// progress reports a long build from time to time: the last line of the installer, and what it downloaded, as uv may
// write nothing for minutes.
type progress struct {
	event func(string, ...any)
	timer *time.Timer

	mu         sync.Mutex
	wait       time.Duration // until the next event
	last       string
	downloaded map[string]int // bytes by host
	over       bool
}

func newProgress(event func(string, ...any)) *progress {
	p := &progress{event: event, wait: quiet, downloaded: map[string]int{}}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(p.wait, p.report)
	return p
}

func (p *progress) hear(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = line
}

func (p *progress) download(host string, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	const most = 100 // if the operator allows any host, a package's code may connect to any number of them
	if _, ok := p.downloaded[host]; ok || len(p.downloaded) < most {
		p.downloaded[host] += bytes
	}
}

func (p *progress) report() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	is := []string{"Environment: still building"}
	for _, host := range slices.Sorted(maps.Keys(p.downloaded)) {
		amount := "nothing yet"
		if n := p.downloaded[host]; n > 0 {
			amount = fmt.Sprintf("%.1f MB", float64(n)/1e6)
		}
		is = append(is, amount+" from "+host)
	}
	if p.last != "" {
		is = append(is, fmt.Sprintf("%.200s", p.last))
	}
	p.event("%s", strings.Join(is, ", "))
	p.wait *= 2
	p.timer.Reset(p.wait)
}

func (p *progress) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.timer.Stop()
}
