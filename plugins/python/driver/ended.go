// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"path/filepath"
	"strings"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/logs"

	"github.com/outrider-dev/outrider/plugins/python/traceback"
)

// ReportExit returns the exception that ended a program, read from the end of its stderr. It works with any interpreter
// and any exception hook, because nothing is added to the program.
func (d *instance) ReportExit(e driver.Ended) string {
	if !d.config.ExceptionEvents || e.AllocDir == "" || e.Exit.Lost || e.Exit.OOMKilled || e.Exit.Code == 0 {
		return ""
	}
	own := filepath.Join(e.AllocDir, e.Task)
	f, ok := traceback.Last(lastOutput(e), e.Exit.Code, filepath.Join(own, "local"), own, e.Command.Dir, e.AllocDir)
	asked := strings.HasPrefix(f.Text, "KeyboardInterrupt") || f.Parting && e.Stopped // SIGINT or a stop ended the program
	if !ok || asked {
		return ""
	}
	return "Python: " + f.String()
}

// lastOutput returns the end of this run's stderr. It reads only the newest log file.
func lastOutput(e driver.Ended) []byte {
	stream, from := e.Task+".stderr", e.StderrFrom
	file, size := logs.End(e.AllocDir, stream)
	begin := max(0, size-traceback.MaxTail)
	if file == int64(from.File) && from.Offset <= size { // the log was not rotated or truncated: skip the previous run
		begin = max(begin, from.Offset)
	}
	r := logs.NewReader(e.AllocDir, stream, file, begin)
	defer r.Close()
	tail := make([]byte, traceback.MaxTail)
	read := 0
	for read < len(tail) {
		_, n, err := r.Read(tail[read:])
		if n == 0 || err != nil {
			break
		}
		read += n
	}
	return tail[:read]
}
