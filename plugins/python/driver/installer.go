package driver

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/outrider-dev/outrider/plugins/python/flight"
	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/interpreter"
)

// installerFinder knows which installer the node has. It asks at a time only once, for all who wait. It is safe for concurrent use.
type installerFinder struct {
	find   func(context.Context, []interpreter.Interpreter) (install.Installer, error)
	logger hclog.Logger

	asking flight.Group // one question at a time

	mu     sync.Mutex        // guards what follows
	known  install.Installer // the zero value while none is
	at     time.Time         // when it was found
	warned string
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
	for {
		known, due := f.recall(again)
		if !due {
			return known, nil
		}
		enough := known.Name != "" // while another asks
		led, err := f.asking.Do(ctx, "installer", func() bool { return !enough }, func() (err error) {
			if known, due = f.recall(again); due { // another may just have asked
				known, err = f.learn(f.find(ctx, found))
			}
			return err
		})
		if led || enough || err != nil {
			return known, err
		}
	}
}

// recall is the installer that is known, and whether it is due to be asked for.
func (f *installerFinder) recall(again bool) (known install.Installer, due bool) {
	const every = 10 * time.Minute
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known, f.known.Name == "" || again && time.Since(f.at) >= every
}

// learn takes down an answer, and returns what follows from it.
func (f *installerFinder) learn(i install.Installer, err error) (install.Installer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var notKnown *install.NotKnownError
	switch {
	case err == nil:
		f.known, f.at = i, time.Now()
		f.warn(i.NoUV)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded): // nobody asked to the end
		return i, err
	case errors.As(err, &notKnown):
		f.warn(err)
		if f.known.Name != "" {
			err = nil
		}
	default:
		f.known = install.Installer{}
		f.warn(err)
	}
	return f.known, err
}

// warn tells the operator once why uv is not used, or why nothing can be built.
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
