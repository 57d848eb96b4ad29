package lab

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// streams copies the output of a job's tasks as it is written.
type streams struct {
	run  *jobRun
	quit chan struct{} // closed by stop: ends the API's follow requests
	wg   sync.WaitGroup
	seen map[string]bool

	mu   sync.Mutex // guards last
	last time.Time  // when something came
}

func newStreams(r *jobRun) *streams {
	return &streams{run: r, quit: make(chan struct{}), seen: map[string]bool{}}
}

// follow starts to copy a task's stdout and stderr, once. The task has to have
// been started: before that Nomad knows of no log.
func (s *streams) follow(ctx context.Context, a *api.Allocation, task string, prefix bool) {
	key := a.ID + "/" + task
	if s.seen[key] {
		return
	}
	s.seen[key] = true
	label := ""
	if prefix {
		label = task
	}
	for _, stream := range []string{api.FSLogNameStdout, api.FSLogNameStderr} {
		s.wg.Add(1)
		go func() {
			defer s.wg.Done()
			s.copy(ctx, a, task, stream, label)
		}()
	}
}

func (s *streams) copy(ctx context.Context, a *api.Allocation, task, stream, label string) {
	frames, errs := s.run.client.AllocFS().Logs(a, true, task, stream, api.OriginStart, 0, s.quit, s.run.query(ctx))
	w := s.run.out.Writer(label)
	defer w.Close() // a last line without its end
	for {
		select {
		case f, ok := <-frames:
			if !ok {
				return
			}
			if f != nil && len(f.Data) > 0 {
				s.mu.Lock()
				s.last = time.Now()
				s.mu.Unlock()
				w.Write(f.Data)
			}
		case err := <-errs:
			if err != nil && ctx.Err() == nil {
				s.run.out.Print("! "+task, "failed to read "+stream+": "+err.Error())
			}
			return
		case <-s.quit:
			return
		case <-ctx.Done():
			return
		}
	}
}

// drain waits until nothing has come for a moment, or every stream has ended:
// Nomad ends the stream of a task that has ended some time after its last byte.
func (s *streams) drain(ctx context.Context) {
	const quiet, most = 400 * time.Millisecond, 5 * time.Second
	ended := make(chan struct{})
	go func() { s.wg.Wait(); close(ended) }()
	start := time.Now()
	for {
		select {
		case <-ended:
			return
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
		s.mu.Lock()
		last := s.last
		s.mu.Unlock()
		if last.Before(start) {
			last = start
		}
		if time.Since(last) > quiet || time.Since(start) > most {
			return
		}
	}
}

// stop ends all copies and waits for them.
func (s *streams) stop() {
	close(s.quit)
	s.wg.Wait()
}
