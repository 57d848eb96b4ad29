// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package interpreter

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/outrider-dev/outrider/plugins/python/process"
)

//go:embed probe.py
var probeSource string

// answer is what probe.py prints.
type answer struct {
	Version        string `json:"version"`
	Executable     string `json:"executable"`
	Prefix         string `json:"prefix"`
	BasePrefix     string `json:"base_prefix"`
	Implementation string `json:"implementation"`
	Full           string `json:"full"`
	ABI            string `json:"abi"`
	Platform       string `json:"platform"`
	Libc           string `json:"libc"`
	FreeThreaded   bool   `json:"free_threaded"`
}

// ask runs the interpreter at path once, as a user, and returns its answer. The process and all that it started have
// ended when ask returns. The error is the reason why the interpreter can't be used, without the path.
func ask(ctx context.Context, path string, as *syscall.Credential, timeout time.Duration) (answer, error) {
	stdout, stderr, err := process.Ask(ctx, timeout, as, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"},
		path, "-I", "-c", probeSource)
	switch {
	case err == nil:
		return parseAnswer(stdout)
	case ctx.Err() != nil:
		return answer{}, ctx.Err()
	case errors.Is(err, process.ErrLate):
		return answer{}, err
	case errors.Is(err, process.ErrTooMuch):
		return answer{}, fmt.Errorf("is no Python: it %w", err)
	case errors.Is(err, fs.ErrPermission) && as != nil:
		return answer{}, fmt.Errorf("can't be run by user %d: permission denied", as.Uid)
	case errors.Is(err, fs.ErrPermission):
		return answer{}, errors.New("can't be run: permission denied")
	case strings.Contains(stderr, "Unknown option: -I"):
		return answer{}, fmt.Errorf("is older than Python 3.%d", oldestMinor)
	}
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	return answer{}, fmt.Errorf("failed to run: %w%s", err, lastLine(stderr))
}

// oldestMinor is the minor version of the oldest Python that is used.
const oldestMinor = 8

var versionNumber = regexp.MustCompile(`^([0-9]+)\.([0-9]+)\.[0-9]+((a|b|rc)[0-9]+)?$`)

func parseAnswer(text string) (answer, error) {
	// a sitecustomize or .pth file may have printed something before
	text = strings.TrimSpace(text)
	line := text[strings.LastIndexByte(text, '\n')+1:]
	var a answer
	if err := json.Unmarshal([]byte(line), &a); err != nil || !versionNumber.MatchString(a.Version) {
		return answer{}, fmt.Errorf("is no Python: it answered %.60q", line)
	}
	m := versionNumber.FindStringSubmatch(a.Version)
	switch {
	case m[1] != "3":
		return answer{}, fmt.Errorf("is Python %s, not 3", a.Version)
	case len(m[2]) == 1 && m[2] < fmt.Sprint(oldestMinor):
		return answer{}, fmt.Errorf("is Python %s, older than 3.%d", a.Version, oldestMinor)
	case a.Prefix != a.BasePrefix:
		return answer{}, errors.New("is of a virtual environment")
	case a.Executable != "" && !filepath.IsAbs(a.Executable):
		return answer{}, fmt.Errorf("is no Python: it answered %.60q", line)
	}
	return a, nil
}

// interpreter is the interpreter that answered at a path. Its file is looked up again, since the path may be that of a
// script that runs it, such as one of pyenv's shims.
func (a answer) interpreter(path string) (Interpreter, fileKey, error) {
	executable := path
	real, key, err := lookAt(path)
	if err == nil && a.Executable != "" {
		actual, actualKey, actualErr := lookAt(a.Executable)
		if actualErr != nil || actualKey.device != key.device || actualKey.Inode != key.Inode {
			executable, real, key, err = a.Executable, actual, actualKey, actualErr
		}
	}
	if err != nil {
		return Interpreter{}, key, fmt.Errorf("failed to look at %s, the interpreter that it runs: %w", executable, err)
	}
	minor := a.Version[:strings.LastIndexByte(a.Version, '.')]
	i := Interpreter{
		Path: executable, Real: real, Names: []string{executable}, Prefix: a.BasePrefix,
		Version: a.Version, Minor: minor, Implementation: a.Implementation, Full: a.Full,
		ABI: a.ABI, Platform: a.Platform, Libc: a.Libc, FreeThreaded: a.FreeThreaded,
		File: key.FileID,
	}
	return i, key, nil
}

// fileKey identifies a file by any of its names.
type fileKey struct {
	device uint64
	FileID
}

// lookAt is the target of a path, and its identity.
func lookAt(path string) (real string, key fileKey, err error) {
	real, err = filepath.EvalSymlinks(path)
	if err != nil {
		return "", fileKey{}, err
	}
	info, err := os.Stat(real)
	if err != nil {
		return "", fileKey{}, err
	}
	if !info.Mode().IsRegular() {
		return "", fileKey{}, errors.New("it is not a regular file")
	}
	st := info.Sys().(*syscall.Stat_t)
	return real, fileKey{uint64(st.Dev), FileID{Inode: st.Ino, Size: info.Size(), ModTime: info.ModTime().UnixNano()}}, nil
}

// lastLine is the last line of an output, to append to an error.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return ""
	}
	return fmt.Sprintf(": %.200s", text[strings.LastIndexByte(text, '\n')+1:])
}
