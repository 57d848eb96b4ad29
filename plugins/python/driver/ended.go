// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/driver"
	"github.com/outrider-dev/outrider/internal/core/logs"
	"github.com/outrider-dev/outrider/internal/core/task"

	"github.com/outrider-dev/outrider/plugins/python/traceback"
)

// ReportExit returns the exception that ended a program, from the end of its stderr. Nothing is added to the program,
// so that this works with any interpreter and any exception hook.
func (d *instance) ReportExit(e driver.Ended) string {
	if !d.config.ExceptionEvents || e.AllocDir == "" || e.Exit.Lost || e.Exit.OOMKilled || e.Exit.Code == 0 {
		return ""
	}
	var tail []byte
	err := asUser(e.Command.User, func() (err error) {
		tail, err = lastOutput(filepath.Join(e.AllocDir, "alloc", "logs"), e.Task+".stderr", e.StderrFrom)
		return err
	})
	if err != nil {
		return ""
	}
	own := filepath.Join(e.AllocDir, e.Task)
	f, ok := traceback.Last(tail, e.Exit.Code, filepath.Join(own, "local"), own, e.Command.Dir, e.AllocDir)
	asked := strings.HasPrefix(f.Text, "KeyboardInterrupt") || f.Parting && e.Stopped // by Nomad, to end
	if !ok || asked {
		return ""
	}
	return "Python: " + f.String()
}

// lastOutput reads the end of the newest log files, and nothing before a place. The task may have replaced the files,
// so that only regular files are read.
func lastOutput(dir, stream string, from task.LogPlace) ([]byte, error) {
	all, err := logs.Indexes(dir, stream)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	newest := int(all[len(all)-1])
	if newest < from.File { // they were removed
		from = task.LogPlace{}
	}
	var tail []byte
	for n := newest; n >= from.File && n > newest-2 && len(tail) < traceback.MaxTail; n-- {
		begin := int64(0)
		if n == from.File {
			begin = from.Offset
		}
		part, err := endOf(filepath.Join(dir, stream+"."+strconv.Itoa(n)), begin, int64(traceback.MaxTail-len(tail)))
		if err != nil {
			break // rotated away
		}
		tail = append(part, tail...)
	}
	return tail, nil
}

// endOf is at most size of a file's last bytes, none of them before begin.
func endOf(path string, begin, size int64) ([]byte, error) {
	f, err := openRegular(path, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if begin > end { // it was truncated
		begin = 0
	}
	if _, err := f.Seek(max(begin, end-size), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, size))
}
