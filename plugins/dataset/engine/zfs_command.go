// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
)

// run runs zfs and returns what it printed.
func (e *Engine) run(ctx context.Context, args ...string) (string, error) {
	if err := e.suspended(); err != nil {
		return "", err
	}
	return e.program.run(ctx, args...)
}

// do runs zfs to change something. Its error wraps the matching error of this package, if any.
func (e *Engine) do(ctx context.Context, args ...string) error {
	_, err := e.run(ctx, args...)
	return ours(err)
}

// messages map parts of zfs's messages to errors of this package, because zfs reports the reason only as text.
// OpenZFS 2.1 to 2.3 print these texts.
var messages = []struct {
	part string
	err  error
}{
	{"more recent snapshots", ErrLaterSnapshots}, // OpenZFS adds "or bookmarks"
	{"busy", ErrInUse},
	{"out of space", ErrNoSpace},
	{"size is less than current used", ErrTooSmall},
	{"read-only", ErrUnavailable},
	{"read only", ErrUnavailable},
	{"I/O is currently suspended", ErrUnavailable},
}

// ours adds the matching error of this package to an error of zfs.
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

// also joins two errors into one line. Either may be nil.
func also(err, other error) error {
	if err == nil || other == nil {
		return errors.Join(err, other)
	}
	return fmt.Errorf("%w; also: %w", err, other)
}

// unavailable adds ErrUnavailable to the error of an operation that fails only if the pool or zfs fails.
func unavailable(err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", err, ErrUnavailable)
}

// suspended returns an error if OpenZFS has suspended the pool after I/O errors: a command would hang in the kernel,
// and could not be killed.
func (e *Engine) suspended() error {
	pool := poolOf(e.root)
	state, err := os.ReadFile(filepath.Join("/proc/spl/kstat/zfs", pool, "state"))
	if err == nil && strings.TrimSpace(string(state)) == "SUSPENDED" {
		return fmt.Errorf("the pool %s is %w: suspended after errors (see: zpool status %s)", pool, ErrUnavailable, pool)
	}
	return nil
}

// properties has the properties of one dataset or snapshot.
type properties struct {
	full   string
	values map[string]struct{ value, source string }
}

// queried are the properties that this package reads. It does not read all, because others may contain newlines.
const queried = "type,mountpoint,canmount,creation,readonly,quota,refquota,used,referenced,usedbysnapshots,available," +
	tagProperty + ",keystatus,encryptionroot,objsetid,receive_resume_token"

// properties returns the properties of a dataset, and of the datasets below it down to the level in depth. Datasets
// above the last level are followed by their snapshots.
func (e *Engine) properties(ctx context.Context, depth int, full string) ([]properties, error) {
	args := []string{"get", "-Hp", "-o", "name,property,value,source"}
	if depth > 0 {
		args = append(args, "-r", "-d", strconv.Itoa(depth))
	}
	text, err := e.run(ctx, append(args, queried, full)...)
	if err != nil {
		return nil, err
	}
	var found []properties
	for line := range strings.Lines(text) {
		field := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(field) != 4 { // a value with a newline could forge the properties of another dataset
			return nil, fmt.Errorf("zfs get printed the unexpected line %q: another program changed the property %s "+
				"of %s or of a dataset below it", line, tagProperty, full)
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

// tags returns the tags that were set on this dataset itself, or nil. Inherited and received properties do not count.
func (p properties) tags() Tags {
	var tags Tags
	if own := p.values[tagProperty]; own.source == "local" && json.Unmarshal([]byte(own.value), &tags) == nil {
		return tags
	}
	return nil
}

// ours reports whether this package made or adopted the dataset: it is a file system with our tags.
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
