package install

import (
	"context"
	"io/fs"
	"os"
	"time"
)

// watch ends the context that it returns when a directory of the build grows by more than MaxSize: what a package
// unpacks to shows only then. stop ends the watch, looks once more, and reports whether it was too much.
func (b *build) watch(ctx context.Context) (_ context.Context, stop func() (tooLarge bool)) {
	if b.MaxSize <= 0 {
		return ctx, func() bool { return false }
	}
	before := sizeOf(b.Downloads) // Dir and Work were empty
	tooLarge := func() bool {
		return max(sizeOf(b.Dir), sizeOf(b.Work), sizeOf(b.Downloads)-before) > b.MaxSize
	}
	watched, cancel := context.WithCancel(ctx)
	found := make(chan bool, 1)
	go func() {
		defer cancel()
		for {
			begun := time.Now()
			if tooLarge() {
				found <- true
				return
			}
			select {
			case <-watched.Done():
				found <- false
				return
			case <-time.After(max(200*time.Millisecond, 9*time.Since(begun))): // looking takes a tenth of the time at most
			}
		}
	}()
	return watched, func() bool { cancel(); return <-found || tooLarge() }
}

// sizeOf is the size of the files in a directory, which the installer changes at the same time; 0 if there is none.
func sizeOf(dir string) (size int64) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0
	}
	defer root.Close()
	_ = fs.WalkDir(root.FS(), ".", func(_ string, d fs.DirEntry, err error) error {
		if err == nil {
			if info, err := d.Info(); err == nil {
				size += info.Size()
			}
		}
		return nil // a file that is gone, or can't be read, does not matter
	})
	return size
}
