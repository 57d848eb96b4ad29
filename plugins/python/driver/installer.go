package driver

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// installerFinder finds the installer of the node, one search at a time for all that wait for it. It is safe for
// concurrent use.
type installerFinder struct {
	find   func(context.Context, []interpreter.Interpreter) (install.Installer, error)
	logger hclog.Logger

	asking chan struct{} // a semaphore: one question at a time

	mu      sync.Mutex        // guards what follows
	known   install.Installer // the zero value while none is
	at      time.Time         // when it was found
	answers int               // so far, the last one with err
	err     error
	warned  string
}

// get returns the installer that builds environments. It waits only where none is known.
func (f *installerFinder) get(ctx context.Context, found []interpreter.Interpreter) (install.Installer, error) {
	return f.ask(ctx, found, false)
}

// renew is get, and searches again from time to time, since one may be installed while the agent runs. Call it
// periodically. An installer that does not answer then stays the known one, and is asked again by the next call.
func (f *installerFinder) renew(ctx context.Context, found []interpreter.Interpreter) (install.Installer, error) {
	return f.ask(ctx, found, true)
}

func (f *installerFinder) ask(ctx context.Context, found []interpreter.Interpreter, again bool) (install.Installer, error) {
	known, due, before := f.recall(again)
	if !due {
		return known, nil
	}
	select {
	case f.asking <- struct{}{}:
	default:
		if known.Name != "" {
			return known, nil
		}
		select {
		case f.asking <- struct{}{}:
		case <-ctx.Done():
			return known, ctx.Err()
		}
	}
	defer func() { <-f.asking }()
	if i, answers, err := f.last(); answers != before { // another has just asked
		return i, err
	}
	return f.learn(f.find(ctx, found))
}

// recall is the installer that is known, whether a search is due, and how many answers there were.
func (f *installerFinder) recall(again bool) (known install.Installer, due bool, answers int) {
	const every = 10 * time.Minute
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known, f.known.Name == "" || again && time.Since(f.at) >= every, f.answers
}

// last is the last of the answers, and how many there were.
func (f *installerFinder) last() (i install.Installer, answers int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known, f.answers, f.err
}

// learn records an answer, and returns what follows from it.
func (f *installerFinder) learn(i install.Installer, err error) (install.Installer, error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) { // it was not asked to the end
		return i, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var notKnown *install.NotKnownError
	switch {
	case err == nil:
		f.known, f.at = i, time.Now()
		f.warn(i.NoUV)
	case errors.As(err, &notKnown):
		f.warn(err)
		if f.known.Name != "" {
			err = nil
		}
	default:
		f.known = install.Installer{}
		f.warn(err)
	}
	f.answers++
	f.err = err
	return f.known, f.err
}

// warn logs once why uv is not used, or why nothing can be built.
func (f *installerFinder) warn(why error) {
	words := ""
	if why != nil {
		words = why.Error()
	}
	if words != "" && words != f.warned {
		f.logger.Warn("an installer can't be used", "reason", words)
	}
	f.warned = words
}
