// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package wire

import (
	"os"
	"sync"
)

// maxQueued is the maximum number of messages queued for a client.
const maxQueued = 2048

// Peer is the server's side of a connection. It queues messages to the client, so Event never waits for a client that
// does not read.
type Peer struct {
	*Transport
	out  chan *Message[any]
	over chan struct{} // closed when the client has hung up
}

// NewPeer returns the server's side of a connection. Call Serve next.
func NewPeer(t *Transport) *Peer {
	return &Peer{Transport: t, out: make(chan *Message[any], maxQueued), over: make(chan struct{})}
}

// Event queues an event. It returns false if the queue is full.
func (p *Peer) Event(body any) bool { return p.queue(&Message[any]{Body: body}) }

func (p *Peer) queue(m *Message[any]) bool {
	select {
	case p.out <- m:
		return true
	default:
		return false
	}
}

// Queued returns the number of messages waiting to be sent.
func (p *Peer) Queued() int { return len(p.out) }

// Serve handles requests of type Q concurrently until the client hangs up. It then calls the function gone, and
// returns when the last call of handle has returned. A client that does not read its replies is disconnected. A
// request's files are closed after handle, and a reply's files after the reply has been sent.
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
			if !p.queue(r) {
				CloseAll(r.Files)
				p.Close()
			}
		})
	}
	close(p.over)
	p.Shut()
	gone()
	running.Wait()
	for { // close the files of unsent messages; the goroutine of write may still take some from the queue
		select {
		case m := <-p.out:
			CloseAll(m.Files)
		default:
			return
		}
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
