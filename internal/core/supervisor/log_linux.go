// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bytes"
	"io"
	"log/slog"
	"os"
)

// logSize bounds the log's file, and the file that has what was in it before.
const logSize = 128 << 10

// oldLog is the path of that file.
func oldLog(path string) string { return path + ".1" }

// logFile is open for appending. A disk that hangs holds up nobody: lines wait in a queue, and if it is full get lost.
type logFile struct {
	*os.File
	path  string
	lines chan []byte
}

// startLog has package slog write to standard error, which is the file at path.
func startLog(path string) {
	l := &logFile{File: os.Stderr, path: path, lines: make(chan []byte, 512)}
	go func() {
		for line := range l.lines {
			l.writeLine(line)
		}
	}()
	slog.SetDefault(slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})))
}

func (l *logFile) Write(line []byte) (int, error) {
	select {
	case l.lines <- bytes.Clone(line):
	default:
	}
	return len(line), nil
}

// writeLine writes a line, at first to an empty file if this one is full. On a full disk what was in that is lost.
func (l *logFile) writeLine(line []byte) {
	size, err := l.Seek(0, io.SeekEnd)
	if err == nil && size+int64(len(line)) > logSize {
		old, _ := os.ReadFile(l.path)
		_ = os.WriteFile(oldLog(l.path), old, 0o600)
		err = l.Truncate(0)
	}
	if err == nil {
		_, _ = l.File.Write(line)
	}
}
