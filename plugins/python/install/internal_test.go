// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

func TestFinder_TimeoutIsTemporary(t *testing.T) {
	uv := filepath.Join(t.TempDir(), "uv")
	must.NoError(t, os.WriteFile(uv, []byte("#!/bin/sh\nexec sleep 600\n"), 0o755))
	f := NewFinder(uv, nil, nil)
	f.timeout = 100 * time.Millisecond
	_, err := f.Find(t.Context())
	var e *Error
	must.True(t, errors.As(err, &e) && e.Temporary)
	must.ErrorContains(t, err, "did not answer within 100ms")
}

// Each process that reads a network file system whose server is down hangs. Calls of the Finder must return anyway.
func TestFinder_HungDirectoryDelaysNoCall(t *testing.T) {
	dir := t.TempDir()
	uv := filepath.Join(t.TempDir(), "uv")
	script := "#!/bin/sh\nif [ \"$1\" = --version ]; then echo uv 9.8.7; else echo []; fi\n"
	must.NoError(t, os.WriteFile(uv, []byte(script), 0o755))
	newFinder := func() *Finder {
		f := NewFinder(uv, []string{dir}, nil)
		_, err := f.Find(t.Context())
		must.NoError(t, err)
		return f
	}
	starts, f := newFinder(), newFinder()
	f.timeout = 100 * time.Millisecond
	release := testsupport.HungMount(t, dir)
	ended, end := context.WithCancel(t.Context())
	time.AfterFunc(f.timeout, end)
	for _, call := range []string{"a call that hangs", "a call that waits for it"} {
		_, err := starts.Pythons(ended, "")
		must.ErrorIs(t, err, context.Canceled, must.Sprint(call))
		must.StrContains(t, err.Error(), dir)
		_, err = f.Pythons(t.Context(), "") // only f.timeout ends the call
		var e *Error
		must.True(t, errors.As(err, &e) && e.Temporary, must.Sprintf("%s: %v", call, err))
		must.StrContains(t, err.Error(), dir)
	}
	release()
	f.turn <- struct{}{} // wait until the hung call has ended
	f.timeout = time.Minute
	<-f.turn
	_, err := f.Pythons(t.Context(), "")
	must.NoError(t, err)
}

func TestEnviron_PassesOnlyCertificatesAndProxies(t *testing.T) {
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "no_proxy", "UV_INDEX"} {
		t.Setenv(name, "the agent's")
	}
	env := strings.Join(environ("/work"), "\n")
	for _, has := range []string{"SSL_CERT_FILE=the agent's", "SSL_CERT_DIR=", "HTTPS_PROXY=", "no_proxy=", "HOME=/work"} {
		must.StrContains(t, env, has)
	}
	must.StrNotContains(t, env, "INDEX")
}

func TestFull_MatchesAFullDisk(t *testing.T) {
	for line, want := range map[string]bool{
		"error: No space left on device (os error 28)":   true,
		"Caused by: Disk quota exceeded (os error 122)":  true,
		"No such file or directory (os error 2)":         false,
		"cp: error writing 'x': No space left on device": true,
		"error: 28": false,
	} {
		must.Eq(t, want, full.MatchString("first "+line), must.Sprint(line))
	}
}
