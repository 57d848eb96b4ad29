package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// installerFinder knows which installer the node has. It asks at a time only once, for all who wait. It is safe for concurrent use.
type installerFinder struct {
	find   func(context.Context, []interpreter.Interpreter) (install.Installer, error)
	logger hclog.Logger

	mu     sync.Mutex
	known  install.Installer // the zero value while none is
	at     time.Time         // when it was found
	asking *asking           // not nil while one asks
	warned string
}

// asking is a question under way. Who asks closes done, after setting the answer.
type asking struct {
	done      chan struct{}
	installer install.Installer
	err       error
}

// get returns the installer that builds environments. Who starts a task waits only where none is known.
func (f *installerFinder) get(ctx context.Context, found []interpreter.Interpreter) (install.Installer, error) {
	return f.ask(ctx, found, false)
}

// renew is get, and asks anew from time to time: one may be installed while the agent runs. It is to be called now
// and then. One that can't answer then stays the one that is known, and is asked again the next time.
func (f *installerFinder) renew(ctx context.Context, found []interpreter.Interpreter) (install.Installer, error) {
	return f.ask(ctx, found, true)
}

func (f *installerFinder) ask(ctx context.Context, found []interpreter.Interpreter, again bool) (install.Installer, error) {
	const every = 10 * time.Minute
	for {
		f.mu.Lock()
		if f.known.Name != "" && (!again || f.asking != nil || time.Since(f.at) < every) {
			defer f.mu.Unlock()
			return f.known, nil
		}
		others := f.asking
		if others == nil {
			mine := &asking{done: make(chan struct{})}
			f.asking = mine
			f.mu.Unlock()
			mine.installer, mine.err = f.find(ctx, found)
			f.learn(mine)
			return mine.installer, mine.err
		}
		f.mu.Unlock()
		select {
		case <-ctx.Done():
			return install.Installer{}, ctx.Err()
		case <-others.done:
		}
		if !ended(others.err) {
			return others.installer, others.err
		}
	}
}

// learn takes down an answer, and hands it out.
func (f *installerFinder) learn(a *asking) {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer close(a.done)
	f.asking = nil
	var notKnown *install.NotKnownError
	switch {
	case a.err == nil:
		f.known, f.at = a.installer, time.Now()
		f.warn(a.installer.NoUV)
	case ended(a.err):
	case errors.As(a.err, &notKnown):
		f.warn(a.err)
		if f.known.Name != "" {
			a.installer, a.err = f.known, nil
		}
	default:
		f.known = install.Installer{}
	}
}

// warn tells the operator once why uv is not used.
func (f *installerFinder) warn(why error) {
	words := ""
	if why != nil {
		words = why.Error()
	}
	if words != "" && words != f.warned {
		f.logger.Warn("uv can't be used", "reason", words)
	}
	f.warned = words
}

// ended is of who did not ask to the end.
func ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
