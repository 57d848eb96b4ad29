package install

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"
)

// bound ends an installer that fills the disk, while it does: what a package unpacks to shows only then. Each of its
// directories may grow by max, as one environment that is just small enough may be in several at a time.
type bound struct {
	max       int64
	dirs      []string         // the last is downloads, if any
	before    map[string]int64 // how large a directory was at first
	downloads string
	others    int // builds that had the same downloads meanwhile; sharing guards it
}

// sharing are this process's builds by their downloads: which of them wrote a file there can't be told.
var sharing = struct {
	sync.Mutex
	builds map[string][]*bound
}{builds: map[string][]*bound{}}

var (
	errTooLarge         = errors.New("too large")
	errTooLargeTogether = errors.New("too large together with other builds")
)

// newBound bounds a build until its end.
func newBound(r *Request) *bound {
	b := &bound{max: r.MaxSize, dirs: []string{r.Dir, r.Work}, before: map[string]int64{}, downloads: r.Downloads}
	if r.Downloads == "" {
		return b
	}
	b.dirs = append(b.dirs, r.Downloads)
	sharing.Lock()
	defer sharing.Unlock()
	b.others = len(sharing.builds[r.Downloads])
	for _, other := range sharing.builds[r.Downloads] {
		other.others++
	}
	sharing.builds[r.Downloads] = append(sharing.builds[r.Downloads], b)
	return b
}

func (b *bound) end() {
	if b.downloads == "" {
		return
	}
	sharing.Lock()
	defer sharing.Unlock()
	left := slices.DeleteFunc(sharing.builds[b.downloads], func(other *bound) bool { return other == b })
	if sharing.builds[b.downloads] = left; len(left) == 0 {
		delete(sharing.builds, b.downloads)
	}
}

// watch looks until stop is called, which returns what it found. The context that it returns ends when that is too much.
func (b *bound) watch(ctx context.Context) (_ context.Context, stop func() error) {
	if b.max <= 0 {
		return ctx, func() error { return nil }
	}
	ctx, cancel := context.WithCancel(ctx)
	var found error
	done := make(chan struct{})
	go func() {
		defer close(done)
		found = b.look(ctx)
		cancel()
	}()
	return ctx, func() error { cancel(); <-done; return found }
}

// look returns when too much is there, or nil when ctx ends.
func (b *bound) look(ctx context.Context) error {
	for {
		begun := time.Now()
		for _, dir := range b.dirs {
			size, err := sizeOf(ctx, dir)
			if err != nil {
				return nil
			}
			if _, ok := b.before[dir]; !ok {
				b.before[dir] = size
			}
			if err := b.judge(dir, size-b.before[dir]); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(200*time.Millisecond, 9*time.Since(begun))): // to look takes a tenth of the time at most
		}
	}
}

func (b *bound) judge(dir string, grown int64) error {
	if dir != b.downloads {
		if grown > b.max {
			return errTooLarge
		}
		return nil
	}
	sharing.Lock()
	defer sharing.Unlock()
	switch {
	case grown/int64(1+b.others) <= b.max:
		return nil
	case b.others > 0:
		return errTooLargeTogether
	}
	return errTooLarge
}

// sizeOf is what is in a directory, which the installer changes at the same time. It fails only when ctx ends.
func sizeOf(ctx context.Context, dir string) (size int64, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, ctx.Err() // it is not there yet
	}
	defer root.Close()
	return size, fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			if info, err := d.Info(); err == nil {
				size += info.Size()
			}
		}
		return ctx.Err() // a file that is gone, or can't be read, does not matter
	})
}
