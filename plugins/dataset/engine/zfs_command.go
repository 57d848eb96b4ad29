// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// run runs zfs and returns what it printed.
func (e *Engine) run(ctx context.Context, args ...string) (string, error) {
	if err := e.suspended(); err != nil {
		return "", err
	}
	unlock, err := e.alone(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	return e.program.run(ctx, args...)
}

// socketDir is where zfs-fuse listens.
const socketDir = "/run/zfs"

// alone waits until no other process runs zfs by this package, if it is that of zfs-fuse. Of two that
// connect at the same time, zfs-fuse 0.7.0 may give the second to both of the threads that it starts,
// and the first never gets an answer (start_ioctl_thread in cmd_listener.c). Of two mounts at the same
// time, it may mix up what its threads are told (zfsfuse_newfs in fuse_listener.c).
func (e *Engine) alone(ctx context.Context) (unlock func(), err error) {
	if e.open {
		return func() {}, nil
	}
	dir, err := os.Open(socketDir)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil // zfs-fuse does not run, and zfs will say so
	}
	if err != nil {
		return nil, err
	}
	locked := make(chan error, 1)
	go func() {
		err := unix.Flock(int(dir.Fd()), unix.LOCK_EX)
		for err == unix.EINTR {
			err = unix.Flock(int(dir.Fd()), unix.LOCK_EX)
		}
		locked <- err
	}()
	release := func() { _ = dir.Close() } // and not the result, which is nil after an error
	select {
	case err := <-locked:
		if err != nil {
			release()
			return nil, fmt.Errorf("failed to lock %s: %w", socketDir, err)
		}
		return release, nil
	case <-ctx.Done():
		go func() {
			<-locked
			release()
		}()
		return nil, fmt.Errorf("zfs-fuse is busy with other commands: %w", ctx.Err())
	}
}

// messages are the words of zfs that are looked for, where nothing else tells the reason.
// Those of zfs-fuse 0.7.0 and OpenZFS 2.1 to 2.3 contain them.
var messages = []struct {
	part string
	err  error
}{
	{"busy", ErrInUse},
	{"out of space", ErrNoSpace},
	{"size is less than current used", ErrTooSmall},
	{"read-only", ErrUnavailable},
	{"read only", ErrUnavailable},
	{"I/O is currently suspended", ErrUnavailable},
}

// ours adds the error of this package that fits to one of zfs.
func ours(err error) error {
	var failed *failure
	if errors.As(err, &failed) {
		for _, m := range messages {
			if strings.Contains(failed.line, m.part) {
				return fmt.Errorf("%w: %w", err, m.err)
			}
		}
	}
	return err
}

// also adds another error, if there is one, to a sentence.
func also(err, other error) error {
	if err == nil || other == nil {
		return errors.Join(err, other)
	}
	return fmt.Errorf("%w; besides, %w", err, other)
}

// unavailable is ours for an operation that fails only if the pool or zfs do.
func unavailable(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", err, ErrUnavailable)
}

// whileBusy runs zfs again as long as it says that a dataset is busy, but not for long:
// zfs-fuse says so after an unmount until all that it does then is done, and of a rollback
// that it is an I/O error.
func (e *Engine) whileBusy(ctx context.Context, args ...string) error {
	limit := time.Second
	if !e.open {
		limit = 3 * time.Second
	}
	for until := time.Now().Add(limit); ; {
		_, err := e.run(ctx, args...)
		err = ours(err)
		again := errors.Is(err, ErrInUse) || args[0] == "rollback" && err != nil && strings.Contains(err.Error(), "I/O error")
		if !again || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// suspended returns an error if OpenZFS has stopped the pool after I/O errors. A command would
// hang in the kernel then, where no signal reaches it.
func (e *Engine) suspended() error {
	pool, _, _ := strings.Cut(e.root, "/")
	state, err := os.ReadFile(filepath.Join("/proc/spl/kstat/zfs", pool, "state"))
	if err == nil && strings.TrimSpace(string(state)) == "SUSPENDED" {
		return fmt.Errorf("the pool %s is suspended after errors (see: zpool status %s): %w", pool, pool, ErrUnavailable)
	}
	return nil
}

// readOnlyPool reports whether the pool was imported read-only. zfs-fuse can't do that.
func (e *Engine) readOnlyPool(ctx context.Context) bool {
	if !e.open {
		return false
	}
	pool, _, _ := strings.Cut(e.root, "/")
	zpool := program(filepath.Join(filepath.Dir(string(e.program)), "zpool"))
	text, err := zpool.run(ctx, "get", "-H", "-o", "value", "readonly", pool)
	return err == nil && strings.TrimSpace(text) == "on"
}

// properties of one dataset or snapshot.
type properties struct {
	full   string
	values map[string]struct{ value, source string }
}

// properties of a dataset, and of what is below it to that depth. Snapshots are among them
// where there are any above the last level.
func (e *Engine) properties(ctx context.Context, depth int, full string) ([]properties, error) {
	args := []string{"get", "-Hp", "-o", "name,property,value,source"}
	if depth > 0 {
		args = append(args, "-r", "-d", strconv.Itoa(depth))
	}
	text, err := e.run(ctx, append(args, "all", full)...)
	if err != nil {
		return nil, err
	}
	var found []properties
	for line := range strings.Lines(text) {
		field := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(field) != 4 {
			continue
		}
		if len(found) == 0 || found[len(found)-1].full != field[0] {
			found = append(found, properties{field[0], map[string]struct{ value, source string }{}})
		}
		found[len(found)-1].values[field[1]] = struct{ value, source string }{field[2], field[3]}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("zfs get printed nothing for %s", full)
	}
	return found, nil
}

func (p properties) value(property string) string { return p.values[property].value }

func (p properties) bytes(property string) int64 {
	n, _ := strconv.ParseInt(p.value(property), 10, 64) // "none" and "-" are 0
	return n
}

// tags of this dataset itself: the datasets below it inherit them, and a stream may bring some.
func (p properties) tags() Tags {
	var tags Tags
	if own := p.values[tagProperty]; own.source == "local" && json.Unmarshal([]byte(own.value), &tags) == nil {
		return tags
	}
	return nil
}

// ours reports whether this package made the dataset.
func (p properties) ours() bool { return p.value("type") == "filesystem" && p.tags() != nil }

func (p properties) dataset(name string, mounted []*mountinfo.Info) Dataset {
	d := Dataset{Name: name, Place: p.value("mountpoint"), Tags: p.tags(),
		Created: time.Unix(p.bytes("creation"), 0).UTC(), Limits: Limits{Data: p.bytes("refquota")},
		Usage: Usage{Data: p.bytes("referenced"), Snapshots: p.bytes("usedbysnapshots")}}
	if quota := p.bytes("quota"); quota > 0 {
		d.Limits.Snapshots = quota - d.Limits.Data
	}
	if at := mountsOf(mounted, p.full); len(at) > 0 {
		d.Path = at[0].Mountpoint
	}
	return d
}
