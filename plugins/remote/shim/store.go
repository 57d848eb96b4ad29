// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/owndir"
	"github.com/outrider-dev/outrider/internal/core/task"
	"github.com/outrider-dev/outrider/plugins/remote/endpoint"
)

// The files of an object, in <state_dir>/objects/<name>. Its directory's flock is held by who
// changes them.
const (
	recordFile = "record.json" // a stored; durable before a caller gets the answer to a change
	leaseFile  = "lease.json"  // a renewal; renewed each second, and of no use after a reboot
	planFile   = "plan.json"   // a plan, with the environment; of no use after a reboot
)

// stored is a record on disk. Fields are only ever added: shims of several versions use it.
type stored struct {
	endpoint.Record

	LeaseEnd clock `json:"lease_end"`
	Changed  clock `json:"changed,omitzero"` // Since

	// TaskID is the supervisor's for the one run of the object.
	TaskID   string        `json:"task_id"`
	KillMode task.KillMode `json:"kill_mode,omitempty"`
	Identity task.Identity `json:"identity,omitzero"` // of the main process

	// Stopping is when the grace of a stop ends for what else got its signal. Until then what is
	// left of a program that has ended is not killed, and the object is not in state Exited.
	Stopping clock `json:"stopping,omitzero"`

	raw map[string]json.RawMessage // as read: what a newer shim wrote is kept
}

// renewal is what an owner changes all the time.
type renewal struct {
	Epoch    uint64                      `json:"epoch"`
	LeaseEnd clock                       `json:"lease_end"`
	Logs     map[string]endpoint.LogMark `json:"logs,omitempty"`
	Files    string                      `json:"files,omitempty"`
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// checkName refuses a name that can't be a directory below objects.
func checkName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("%q is not a name of an object", name)
	}
	return nil
}

// maxObjects is how many objects a host has at most.
const maxObjects = 4096

func (s *Shim) objects() string              { return filepath.Join(s.cfg.StateDir, "objects") }
func (s *Shim) objectDir(name string) string { return filepath.Join(s.objects(), name) }

// locked is an object that nobody else changes until unlock.
type locked struct {
	dir  *os.File
	path string
	o    *stored // nil if there is no record
}

func (l *locked) unlock() { l.dir.Close() }

// lock waits for an object's lock, and reads the record. It is ErrGone without a directory.
func (s *Shim) lock(ctx context.Context, name string) (*locked, error) {
	return wait(ctx, name, s.tryLock)
}

// wait makes an attempt to get an object's lock again and again.
func wait(ctx context.Context, name string, try func(name string) (*locked, error)) (*locked, error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		l, err := try(name)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: object %s is in use: %w", endpoint.ErrUnreachable, name, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// tryLock is lock without the wait: its error is EWOULDBLOCK if another holder has the lock.
func (s *Shim) tryLock(name string) (*locked, error) {
	l, err := s.lockDir(name)
	if err != nil {
		return nil, err
	}
	if l.o, err = readObject(l.path); err != nil && !errors.Is(err, endpoint.ErrGone) {
		l.unlock()
		return nil, err
	}
	return l, nil
}

// lockDir is tryLock of an object whose record need not be readable.
func (s *Shim) lockDir(name string) (*locked, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	path := s.objectDir(name)
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, endpoint.ErrGone
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		dir.Close()
		return nil, err
	}
	// it may have been removed, and made anew, between the two
	here, err1 := os.Lstat(path)
	mine, err2 := dir.Stat()
	if err1 != nil || err2 != nil || !os.SameFile(here, mine) {
		dir.Close()
		return nil, unix.EWOULDBLOCK
	}
	return &locked{dir: dir, path: path}, nil
}

// owned locks an object for a change by its owner.
func (s *Shim) owned(ctx context.Context, ref endpoint.Ref) (*locked, error) {
	l, err := s.lock(ctx, ref.Name)
	if err != nil {
		return nil, err
	}
	if l.o == nil {
		l.unlock()
		return nil, endpoint.ErrGone
	}
	if !l.o.Is(ref) {
		defer l.unlock()
		return nil, fmt.Errorf("%w: its epoch is %d now", endpoint.ErrEpoch, l.o.Epoch)
	}
	return l, nil
}

// errDamaged is the error of an object whose record can't be read.
var errDamaged = errors.New("the object's record is damaged: only a person can tell what is to be done with it")

// readObject reads a record: ErrGone if there is none, errDamaged if it can't be read.
func readObject(dir string) (*stored, error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, endpoint.ErrGone
	}
	if err != nil {
		return nil, err
	}
	o := &stored{}
	if err := errors.Join(json.Unmarshal(b, o), json.Unmarshal(b, &o.raw)); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if o.Name != filepath.Base(dir) || o.Epoch == 0 || o.TaskID == "" {
		return nil, fmt.Errorf("%w: it has no epoch, or is another object's", errDamaged)
	}
	var r renewal
	if b, err := os.ReadFile(filepath.Join(dir, leaseFile)); err == nil && json.Unmarshal(b, &r) == nil &&
		r.Epoch == o.Epoch {
		o.LeaseEnd = r.LeaseEnd
		o.mark(endpoint.Mutable{Logs: r.Logs, Files: r.Files})
	}
	return o, nil
}

func (o *stored) mark(m endpoint.Mutable) {
	o.Files = cmp.Or(m.Files, o.Files)
	for stream, m := range m.Logs {
		if o.Logs == nil {
			o.Logs = map[string]endpoint.LogMark{}
		}
		o.Logs[stream] = m
	}
}

// change notes that the state or the owner changes.
func (o *stored) change() {
	o.Changed = clockIn(0)
	o.Since = o.Changed.Day
}

// public is the record for a caller.
func (o *stored) public() *endpoint.Record {
	r := o.Record
	r.Lease, r.Age = o.LeaseEnd.left(), max(0, time.Since(o.Since))
	if o.Changed.Boot == task.BootID() && o.Changed.Day.Equal(o.Since) { // an older shim sets Since alone
		r.Age = -o.Changed.left()
	}
	return &r
}

// save writes the record. It is on the disk when save returns.
func (l *locked) save() error {
	known := map[string]json.RawMessage{}
	b, err := json.Marshal(l.o)
	if err == nil {
		err = json.Unmarshal(b, &known)
	}
	if err != nil {
		return err
	}
	for name, value := range l.o.raw { // a field of a newer version
		if _, set := known[name]; !set && !storedFields[name] {
			known[name] = value
		}
	}
	if b, err = json.Marshal(known); err != nil {
		return err
	}
	return writeFile(l.path, recordFile, b, true)
}

// renew writes what a renewal changes. A caller that also changes the record under the same epoch calls renew first
// and save after it: readObject prefers the marks of the renewal to those of the record.
func (l *locked) renew(m endpoint.Mutable) error {
	l.o.mark(m)
	b, err := json.Marshal(renewal{Epoch: l.o.Epoch, LeaseEnd: l.o.LeaseEnd, Logs: l.o.Logs, Files: l.o.Files})
	if err != nil {
		return err
	}
	return writeFile(l.path, leaseFile, b, false)
}

// storedFields are the names that a stored is written with.
var storedFields = fieldNames(reflect.TypeFor[stored]())

func fieldNames(t reflect.Type) map[string]bool {
	names := map[string]bool{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names[name] = true
	}
	return names
}

// writeFile replaces a file.
func writeFile(dir, name string, b []byte, durable bool) (err error) {
	temp := filepath.Join(dir, "."+name+".new")
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, filepath.Join(dir, name))
	}
	if err != nil {
		_ = os.Remove(temp)
		return err
	}
	if durable {
		return syncDir(dir)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// makeObject makes the directory of an object, and locks it.
func (s *Shim) makeObject(ctx context.Context, name string) (*locked, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	for range 10 { // the last object's removal takes the directory above with it
		// 0711: a task of another user reaches its own directory, by its name
		top, err := owndir.Make(s.objects(), 0o711)
		if err != nil {
			return nil, fmt.Errorf("the directory for tasks on the host can't be used: %w", err)
		}
		names, err := top.Readdirnames(-1)
		top.Close()
		if err == nil && len(names) >= maxObjects {
			return nil, fmt.Errorf("the host has %d objects, which is the most that it may have", len(names))
		}
		err = os.Mkdir(s.objectDir(name), 0o711)
		if err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		l, err := s.lock(ctx, name)
		if !errors.Is(err, endpoint.ErrGone) {
			return l, err
		}
	}
	return nil, fmt.Errorf("failed to make object %s: its directory is removed again and again", name)
}
