// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"
)

const odd = "a 'b' \"c\" \\d\\ \\\\ $HOME `e` !f! *? {g,h} ~ #i; & | < > ^ % \t ü"

func TestRun_WorksInEveryShell(t *testing.T) {
	for _, name := range []string{"sh", "bash", "dash", "zsh"} {
		shell, err := exec.LookPath(name)
		if err != nil {
			continue // few machines have them all
		}
		t.Run(name, func(t *testing.T) {
			server := sshdtest.Start(t, sshdtest.Unprivileged(), sshdtest.Shell(shell))
			for _, profile := range []string{".bashrc", ".zshenv"} {
				content := []byte("echo Welcome to this host!\necho outrider-\n")
				must.NoError(t, os.WriteFile(filepath.Join(server.Home, profile), content, 0o644))
			}
			conn := dial(t, configOf(server))
			out, err := conn.Run(t.Context(), strings.NewReader("input"), "id -un\ncat; printf '\n%s\\n' \"$@\"", odd, "")
			must.NoError(t, err)
			must.Eq(t, "remote\ninput\n"+odd+"\n\n\n", string(out))

			program, err := conn.Start(t.Context(), "/bin/sh", "-c", `printf "%s %s\n" "$1" "$0"; cat`, odd, "ready")
			must.NoError(t, err)
			test.StrContains(t, readTo(t, program, odd+"\n"), "ready "+odd)
			_, err = fmt.Fprintln(program, "echo")
			must.NoError(t, err)
			must.Eq(t, "echo\n", readTo(t, program, "\n"))
			must.NoError(t, program.Close())
		})
	}
}

// readTo reads up to the end of a text.
func readTo(t *testing.T, r io.Reader, text string) string {
	t.Helper()
	var got []byte
	for !bytes.HasSuffix(got, []byte(text)) {
		b := make([]byte, 1)
		_, err := io.ReadFull(r, b)
		must.NoError(t, err, must.Sprintf("after %q", got))
		got = append(got, b...)
	}
	return string(got)
}

func TestRun_FailureIsOneSentence(t *testing.T) {
	conn := dial(t, configOf(sshdtest.Start(t)))
	for script, want := range map[string]string{
		"echo some; echo x >&2; echo why >&2; exit 3": "it ended with status 3: why",
		"kill -9 $$":                "it was killed by SIGKILL",
		"exec yes":                  "wrote more than 1048576 bytes",
		"head -c 1100000 /dev/zero": "wrote more than 1048576 bytes",
		"exec /no/program":          "it ended with status 127: sh: 1: exec: /no/program: not found",
		"echo too much >&2; yes err | head -c 100000 >&2; false": "it ended with status 1: err",
	} {
		_, err := conn.Run(t.Context(), nil, script)
		test.ErrorContains(t, err, want, test.Sprint(script))
	}
	out, err := conn.Run(t.Context(), nil, "head -c 1000000 /dev/zero")
	test.NoError(t, err)
	test.Len(t, 1_000_000, out)

	// a script that does not read its input
	_, err = conn.Run(t.Context(), bytes.NewReader(make([]byte, 32<<20)), "true")
	test.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_, err = conn.Run(ctx, nil, "sleep 50")
	lostBy(t, conn, err)
	test.ErrorContains(t, err, "a command did not end in time")
	test.ErrorIs(t, err, context.DeadlineExceeded)
	test.Less(t, 30*time.Second, time.Since(begun))
}

func TestRun_HostThatRunsNoCommandsIsOneSentence(t *testing.T) {
	for option, want := range map[string]string{
		"ForceCommand echo not here":    `runs no commands: its login shell, which has to be sh, bash, dash or zsh, or a forced command wrote "not here"`,
		"ForceCommand exit 7":           `a forced command wrote ""`,
		"ForceCommand internal-sftp":    "runs no commands: ",
		"ForceCommand echo no >&2":      `a forced command wrote "no"`,
		"MaxSessions 0":                 "allows no more sessions (MaxSessions): ",
		"ForceCommand kill -9 $PPID; :": "was lost: ",
	} {
		conn := dial(t, configOf(sshdtest.Start(t, sshdtest.Config(option))))
		_, err := conn.Run(t.Context(), strings.NewReader("junk"), "true")
		test.ErrorContains(t, err, want, test.Sprint(option))
	}
	server := sshdtest.Start(t, sshdtest.Shell("/usr/sbin/nologin"))
	_, err := dial(t, configOf(server)).Run(t.Context(), nil, "true")
	test.ErrorContains(t, err, `wrote "This account is currently not available."`)
}

func TestStart_ReportsHowTheProgramEnded(t *testing.T) {
	conn := dial(t, configOf(sshdtest.Start(t)))
	for script, want := range map[string]string{
		"echo why >&2; exit 4": "it ended with status 4: why",
		"kill -9 $$":           "it was killed by SIGKILL",
		"echo note >&2; true":  "EOF",
	} {
		program, err := conn.Start(t.Context(), "/bin/sh", "-c", script)
		must.NoError(t, err)
		for range 2 {
			_, err = program.Read(make([]byte, 1))
			must.EqError(t, err, want)
		}
		_, err = program.Write(make([]byte, 1))
		must.ErrorIs(t, err, io.ErrClosedPipe)
		must.NoError(t, program.Close())
		must.NoError(t, program.Close())
	}
	program, err := conn.Start(t.Context(), "/no/program", "serve")
	must.NoError(t, err)
	_, err = program.Read(make([]byte, 1))
	must.ErrorContains(t, err, "it ended with status 127: ")
}

// Also for go test -race.
func TestStart_IsClosedDuringAWrite(t *testing.T) {
	conn := dial(t, configOf(sshdtest.Start(t)))
	mark := testsupport.Mark()
	program, err := conn.Start(t.Context(), "/bin/sh", "-c", "sleep "+mark+" & pid=$!; cat; kill $pid")
	must.NoError(t, err)
	begun, ended := make(chan struct{}), make(chan error)
	go func() {
		_, err := program.Write([]byte("x"))
		for close(begun); err == nil; {
			_, err = program.Write([]byte("x"))
		}
		ended <- err
	}()
	<-begun
	must.NoError(t, program.Close())
	must.ErrorIs(t, <-ended, io.ErrClosedPipe)
	testsupport.WaitSleepers(t, mark, 0)
}

func TestSessions_NeedTwoAtATime(t *testing.T) {
	conn := dial(t, configOf(sshdtest.Start(t, sshdtest.Config("MaxSessions 2"))))
	_, err := conn.Start(t.Context(), "/bin/cat")
	must.NoError(t, err)
	for range 100 {
		_, err := conn.Run(t.Context(), nil, "true")
		must.NoError(t, err)
	}
	_, err = conn.Start(t.Context(), "/bin/cat")
	must.NoError(t, err)
	_, err = conn.Run(t.Context(), nil, "true")
	must.ErrorContains(t, err, "allows no more sessions (MaxSessions): ")
}

func TestSessions_LeakNothing(t *testing.T) {
	conn := dial(t, configOf(sshdtest.Start(t)))
	use := func() {
		_, err := conn.Run(t.Context(), strings.NewReader("x"), "exit 0")
		must.NoError(t, err)
		program, err := conn.Start(t.Context(), "/bin/true")
		must.NoError(t, err)
		_, err = io.ReadAll(program)
		must.NoError(t, err)
		must.NoError(t, program.Close())
	}
	use()
	goroutines, descriptors := runtime.NumGoroutine(), testsupport.Descriptors(t)
	for range 30 {
		use()
	}
	testsupport.Eventually(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
	test.Eq(t, descriptors, testsupport.Descriptors(t))
}
