// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package wire

import (
	"os"
	"sync"
)

// Peer is a server's side of a connection. Messages to the client go through a queue, since a
// caller must not wait for a client that does not read.
type Peer struct {
	*Transport
	out  chan *Message[any]
	over chan struct{} // closed when the client has hung up
}

// NewPeer returns a server's side of a connection; Serve is to follow.
func NewPeer(t *Transport) *Peer {
	return &Peer{Transport: t, out: make(chan *Message[any], 1024), over: make(chan struct{})}
}

// Event queues an event. It returns false if the queue is full.
func (p *Peer) Event(body any) bool {
	select {
	case p.out <- &Message[any]{Body: body}:
		return true
	default:
		return false
	}
}

// Queued is how many messages wait to be sent.
func (p *Peer) Queued() int { return len(p.out) }

// Serve answers requests of type Q until the client hangs up, then calls gone, and returns
// when the last call of handle has. Requests are handled concurrently. A request's files are
// closed after handle, those of its reply when it has been sent.
func Serve[Q any](p *Peer, handle func(*Q, []*os.File) (reply any, files []*os.File), gone func()) {
	go p.write()
	var running sync.WaitGroup
	for {
		m, err := receive[Q](p.Transport)
		if err != nil {
			break
		}
		running.Go(func() {
			r := &Message[any]{Seq: m.Seq}
			r.Body, r.Files = handle(&m.Body, m.Files)
			CloseAll(m.Files)
			select {
			case p.out <- r:
			case <-p.over:
				CloseAll(r.Files)
			}
		})
	}
	close(p.over)
	p.Shut()
	gone()
	running.Wait()
	for p.Queued() > 0 {
		CloseAll((<-p.out).Files)
	}
}

func (p *Peer) write() {
	for {
		select {
		case m := <-p.out:
			err := send(p.Transport, *m)
			CloseAll(m.Files)
			if err != nil {
				p.Close()
			}
		case <-p.over:
			return
		}
	}
}
