// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package interpreter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/process"
)

// Finder finds the interpreters of the node. It is safe for concurrent use.
type Finder struct {
	// Globs are where interpreters may be (filepath.Match), nil is defaultGlobs. A
	// wildcard matches names of interpreters only ("python3.12", "pypy3"); one without wildcards may have any.
	Globs []string

	// As is the user that runs them, nil for this process's. It should have no more rights than tasks, so that each
	// interpreter found can be run by them.
	As *syscall.Credential

	asking sync.Mutex // held while interpreters run, so that none runs twice; its holder ends with a context

	mu    sync.Mutex // guards what follows, and is not held while an interpreter runs
	known map[string]verdict
	asked int // how many were run, for tests

	timeout, retry time.Duration // of tests, instead of askTimeout and askAgain
}

const (
	// askTimeout is how long an interpreter may take to answer. One that takes longer, as on a node that is overloaded
	// or just boots, is asked again by the next Renew with twice the time, up to askLongest.
	askTimeout = 10 * time.Second
	askLongest = 80 * time.Second
	// askAgain is the time after which an interpreter that failed is asked again: it may work though its file has not
	// changed.
	askAgain = 10 * time.Minute
	// askAtOnce is how many are asked at the same time.
	askAtOnce = 4
)

// verdict is the answer of the interpreter at a path.
type verdict struct {
	file        fileKey // at the path
	target      fileKey // of the interpreter that ran: another file if the path is a script's
	interpreter Interpreter
	err         error // why it is not used
	at          time.Time
	late        time.Duration // how long it was waited for without an answer
}

// candidate is a file in one directory, under all its names there. The same file in another directory is another
// candidate, since the directory decides whether it belongs to a virtual environment (PEP 405).
type candidate struct {
	path  string // the preferred of names
	real  string
	names []string
	file  fileKey
}

// Found is the result of a search.
type Found struct {
	// Interpreters are in the order of preference: CPython with a GIL before others, releases before pre-releases, and
	// then the newest first. Several names of one file are one interpreter.
	Interpreters []Interpreter

	// Rejected has a sentence for each file that matches and is not used, such as one of a virtual environment, in the
	// order of Globs.
	Rejected []string

	// Late are the paths of rejected files that did not answer in time when they were last run. They may be interpreters.
	Late []string
}

// Find returns the interpreters. Each is run once, and again when its file has changed. It runs interpreters, or waits
// for another call that does, only if nothing is known of one. The error is that of a glob, or of ctx.
func (f *Finder) Find(ctx context.Context) (Found, error) { return f.find(ctx, false) }

// Renew is Find, and asks those again that failed a while ago or were late. Call it periodically.
func (f *Finder) Renew(ctx context.Context) (Found, error) { return f.find(ctx, true) }

func (f *Finder) find(ctx context.Context, again bool) (Found, error) {
	var result Found
	candidates, err := f.candidates(&result.Rejected)
	if err != nil {
		return Found{}, err
	}
	verdicts, err := f.verdicts(ctx, candidates, again)
	if err != nil {
		return Found{}, err
	}
	type identity struct {
		device, inode uint64
		prefix        string
	}
	var found []Interpreter
	at := map[identity]int{}
	for n, c := range candidates {
		v := verdicts[n]
		if v.err != nil {
			result.Rejected = append(result.Rejected, fmt.Sprintf("%s %v", c.path, v.err))
			if v.late > 0 {
				result.Late = append(result.Late, c.path)
			}
			continue
		}
		i, id := v.interpreter, identity{v.target.device, v.target.Inode, v.interpreter.Prefix}
		if known, ok := at[id]; ok {
			found[known].Names = append(found[known].Names, append(c.names, i.Names...)...)
			continue
		}
		at[id] = len(found)
		i.Names = append(slices.Clone(c.names), i.Names...)
		found = append(found, i)
	}
	for n := range found {
		found[n].finish()
	}
	slices.SortStableFunc(found, byDefault)
	result.Interpreters = found
	return result, nil
}

// finish removes duplicate names, and takes the preferred of those that are the
// interpreter itself and not a script that runs it.
func (i *Interpreter) finish() {
	var names, own []string
	for _, n := range i.Names {
		if slices.Contains(names, n) {
			continue
		}
		names = append(names, n)
		if real, key, err := lookAt(n); err == nil && (real == i.Real || key.FileID == i.File) {
			own = append(own, n)
		}
	}
	i.Names = names
	if len(own) > 0 {
		i.Path = preferred(own, i.Real)
	}
}

// candidates are what the globs match, in their order.
func (f *Finder) candidates(rejected *[]string) ([]candidate, error) {
	globs := f.Globs
	if globs == nil {
		globs = defaultGlobs()
	}
	type place struct{ real, dir string }
	at := map[place]int{}
	seen := map[string]bool{}
	var found []candidate
	for _, glob := range globs {
		if !filepath.IsAbs(glob) {
			return nil, fmt.Errorf("failed to look for interpreters at %q: write it from /", glob)
		}
		paths, err := matching(glob)
		if err != nil {
			return nil, fmt.Errorf("failed to look for interpreters at %q: %w", glob, err)
		}
		if len(paths) == 0 && f.Globs != nil {
			*rejected = append(*rejected, fmt.Sprintf("%s matches no file that is named as an interpreter", glob))
		}
		for _, path := range paths {
			if path = filepath.Clean(path); seen[path] {
				continue
			}
			seen[path] = true
			real, key, err := lookAt(path)
			if err != nil {
				var p *fs.PathError
				if errors.As(err, &p) {
					err = p.Err
				}
				*rejected = append(*rejected, fmt.Sprintf("%s can't be used: %v", path, err))
				continue
			}
			here := place{real, filepath.Dir(path)}
			if n, ok := at[here]; ok {
				found[n].names = append(found[n].names, path)
				continue
			}
			at[here] = len(found)
			found = append(found, candidate{real: real, names: []string{path}, file: key})
		}
	}
	for n, c := range found {
		found[n].path = preferred(c.names, c.real)
	}
	return found, nil
}

// verdicts are those of the candidates, in their order. It asks those that are not known, and those that are due again,
// unless another call does that: then what was known is enough.
func (f *Finder) verdicts(ctx context.Context, candidates []candidate, again bool) ([]verdict, error) {
	all, which, enough := f.recall(candidates, again)
	if len(which) == 0 {
		return all, ctx.Err()
	}
	if !f.asking.TryLock() {
		if enough {
			return all, ctx.Err()
		}
		f.asking.Lock()
	}
	defer f.asking.Unlock()
	all, which, _ = f.recall(candidates, again) // another may just have asked them
	f.askThem(ctx, candidates, which, all)
	return all, ctx.Err()
}

// recall is what is known of the candidates, in their order, and the indexes of those to be asked; enough means that
// something is known of each. It forgets what no longer exists.
func (f *Finder) recall(candidates []candidate, again bool) (all []verdict, which []int, enough bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := make(map[string]verdict, len(candidates))
	all, enough = make([]verdict, len(candidates)), true
	for n, c := range candidates {
		v, ok := f.known[c.path]
		if ok = ok && v.file == c.file && v.sameTarget(); ok {
			known[c.path], all[n] = v, v
		}
		if !ok || again && f.isOld(v) {
			which = append(which, n)
		}
		enough = enough && ok
	}
	f.known = known
	return all, which, enough
}

// askThem asks the candidates with the indexes in which, and puts the verdicts into all.
func (f *Finder) askThem(ctx context.Context, candidates []candidate, which []int, all []verdict) {
	slots := make(chan struct{}, askAtOnce)
	var running sync.WaitGroup
	for _, n := range which {
		running.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			all[n] = f.verdict(ctx, candidates[n], all[n])
		})
	}
	running.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked += len(which)
	for _, n := range which {
		if !errors.Is(all[n].err, context.Canceled) && !errors.Is(all[n].err, context.DeadlineExceeded) { // ctx ended before
			f.known[candidates[n].path] = all[n]
		}
	}
}

// verdict asks a candidate, which may have been late before.
func (f *Finder) verdict(ctx context.Context, c candidate, before verdict) verdict {
	if err := ctx.Err(); err != nil {
		return verdict{err: err}
	}
	v := verdict{file: c.file, at: time.Now()}
	timeout := askTimeout
	if f.timeout > 0 {
		timeout = f.timeout
	}
	timeout = max(timeout, min(2*before.late, askLongest))
	said, err := ask(ctx, c.path, f.As, timeout)
	if errors.Is(err, process.ErrLate) {
		v.late = timeout
	}
	if err == nil {
		v.interpreter, v.target, err = said.interpreter(c.path)
	}
	v.err = err
	return v
}

// isOld reports whether an interpreter that failed, or had no pip, is to be asked again.
func (f *Finder) isOld(v verdict) bool {
	if v.late > 0 && v.late < askLongest {
		return true
	}
	retry := askAgain
	if f.retry > 0 {
		retry = f.retry
	}
	return v.err != nil && time.Since(v.at) >= retry
}

// sameTarget reports whether the file that ran is unchanged.
func (v verdict) sameTarget() bool {
	if v.err != nil {
		return true
	}
	_, target, err := lookAt(v.interpreter.Real)
	return err == nil && target == v.target
}
