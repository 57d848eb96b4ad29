// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package logs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

func writer(t *testing.T, cfg Config) *Writer {
	t.Helper()
	cfg.Name = "web.stdout"
	w, err := NewWriter(cfg, KeepNone)
	must.NoError(t, err)
	t.Cleanup(func() { w.Close() })
	return w
}

func noEvent(t *testing.T) func(string) {
	return func(event string) { t.Errorf("event %q", event) }
}

func writeAll(t *testing.T, w *Writer, p []byte) {
	t.Helper()
	for len(p) > 0 {
		n, err := w.Write(t.Context(), p[:min(len(p), 3000)], noEvent(t))
		must.NoError(t, err)
		p = p[n:]
	}
}

func TestWriter_WritesWhatAStreamWrites(t *testing.T) {
	data := text(200<<10, 100)
	alloc, dir := allocDir(t)
	w := writer(t, Config{AllocDir: alloc, MaxFileSize: 10000, MaxFiles: 5})
	writeAll(t, w, data[:100<<10])
	must.NoError(t, w.Close())
	w = writer(t, Config{AllocDir: alloc, MaxFileSize: 10000, MaxFiles: 5}) // it goes on
	writeAll(t, w, data[100<<10:])
	got, names := concatenation(t, dir)
	test.SliceLen(t, 5, names)
	equal(t, got, data[len(data)-len(got):])

	alloc2, dir2 := allocDir(t)
	task, s := stream(t, Config{AllocDir: alloc2, MaxFileSize: 10000, MaxFiles: 5})
	put(t, task, s, data)
	_, names2 := concatenation(t, dir2)
	must.Eq(t, len(names2), len(names))
	for i := range names {
		a, err := os.ReadFile(names[i])
		must.NoError(t, err)
		b, err := os.ReadFile(names2[i])
		must.NoError(t, err)
		test.Eq(t, filepath.Base(names2[i]), filepath.Base(names[i]))
		equal(t, a, b)
	}
	index, size := w.End()
	i2, s2 := End(alloc, "web.stdout")
	test.Eq(t, i2, index)
	test.Eq(t, s2, size)
}

func TestWriter_SurvivesARenamedAndARemovedDirectory(t *testing.T) {
	alloc, dir := allocDir(t)
	w := writer(t, Config{AllocDir: alloc})
	writeAll(t, w, []byte("one\n"))
	must.NoError(t, os.Rename(dir, dir+"2"))
	writeAll(t, w, []byte("two\n"))
	got, _ := concatenation(t, dir+"2")
	equal(t, got, []byte("one\ntwo\n"))
	must.NoError(t, os.RemoveAll(dir+"2"))
	must.NoError(t, os.Mkdir(dir, 0o777))
	writeAll(t, w, []byte("three\n"))
	got, _ = concatenation(t, dir)
	equal(t, got, []byte("three\n"))
}

func TestWriter_FollowsNoLink(t *testing.T) {
	alloc, dir := allocDir(t)
	victim := filepath.Join(t.TempDir(), "victim")
	must.NoError(t, os.WriteFile(victim, []byte("mine"), 0o600))
	must.NoError(t, os.Symlink(victim, filepath.Join(dir, "web.stdout.0")))
	w := writer(t, Config{AllocDir: alloc})
	writeAll(t, w, []byte("one\n"))
	must.NoError(t, os.Remove(filepath.Join(dir, "web.stdout.0")))
	must.NoError(t, os.Symlink(victim, filepath.Join(dir, "web.stdout.0")))
	must.NoError(t, Truncate(alloc, "web.stdout", 0, 0))
	b, err := os.ReadFile(victim)
	must.NoError(t, err)
	test.Eq(t, "mine", string(b))
}

func TestWriter_WaitsForAFullDisk(t *testing.T) {
	alloc, dir := smallDisk(t, 256<<10)
	w := writer(t, Config{AllocDir: alloc})
	t.Cleanup(func() { w.Close() }) // before the file system goes
	free := fill(t, dir, 16<<10)
	data := text(50<<10, 100)
	var events []string
	report := func(e string) {
		if events = append(events, e); len(events) == 1 {
			time.AfterFunc(1500*time.Millisecond, free)
		}
	}
	n, err := w.Write(t.Context(), data, report)
	must.NoError(t, err)
	must.Eq(t, len(data), n)
	test.Eq(t, []string{"stdout waits: no space left on device", "stdout goes on"}, events)
	got, _ := concatenation(t, dir)
	equal(t, got, data)

	free = fill(t, dir, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = w.Write(ctx, data, func(string) {})
	test.ErrorIs(t, err, context.DeadlineExceeded)
	free()
}

func TestWriter_KeepsFilesFromAPlaceOn(t *testing.T) {
	alloc, dir := allocDir(t)
	w := writer(t, Config{AllocDir: alloc, MaxFileSize: 1000, MaxFiles: 2})
	w.Keep(0)
	data := []byte(strings.Repeat(strings.Repeat("x", 99)+"\n", 100))
	writeAll(t, w, data[:4500])
	index, size := w.End()
	must.Eq(t, 4, index)
	must.Eq(t, 500, size)
	got, _ := concatenation(t, dir)
	equal(t, got, data[:4500])
	n, err := Behind(alloc, "web.stdout", 1, 300)
	must.NoError(t, err)
	test.Eq(t, 4500-1300, n)
	test.Eq(t, 1, w.Keep(2), test.Sprint("too many"))
	_, names := concatenation(t, dir)
	test.Eq(t, "web.stdout.2", filepath.Base(names[0]), test.Sprint("the first one left"))
	n, err = Behind(alloc, "web.stdout", 1, 1000) // a file that is removed ended at the place
	must.NoError(t, err)
	test.Eq(t, 2500, n)
	test.Eq(t, 0, w.Keep(4), test.Sprint("too many"))

	must.NoError(t, Truncate(alloc, "web.stdout", 3, 700))
	got, names = concatenation(t, dir)
	test.SliceLen(t, 1, names, test.Sprint(fmt.Sprint(names)))
	equal(t, got, data[3000:3700])
}
