// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bytes"
	"io"
	"log/slog"
	"os"
)

// logSize is the maximum size in bytes of the log file, and of the older log file.
const logSize = 128 << 10

// oldLog returns the path of the older log file, which gets the content of a full log file.
func oldLog(path string) string { return path + ".1" }

// logFile is the supervisor's log file. Write only queues a line, and drops it if the queue is full, so callers never
// wait for a disk that hangs.
type logFile struct {
	*os.File
	path  string
	lines chan []byte
}

// startLog makes package slog write to standard error, which is the file at path.
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

// writeLine appends a line. It first moves the content of a full log file to the older log file. If the disk is full,
// that content is lost.
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
