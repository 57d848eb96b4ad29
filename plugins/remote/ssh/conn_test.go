// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package ssh

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
	"github.com/outrider-dev/outrider/internal/core/testsupport/sshd/sshdtest"
)

const odd = "a 'b' \"c\" \\d\\ \\\\ $HOME `e` !f! *? {g,h} ~ #i; & | < > ^ % \t ü"

func TestStart_WorksInEveryShell(t *testing.T) {
	for _, name := range []string{"sh", "bash", "dash", "zsh"} {
		shell, err := exec.LookPath(name)
		if err != nil {
			continue // few machines have all these shells
		}
		t.Run(name, func(t *testing.T) {
			server := sshdtest.Start(t, sshdtest.Unprivileged(), sshdtest.Shell(shell))
			for _, profile := range []string{".bashrc", ".zshenv"} {
				content := []byte("echo Welcome to this host!\necho outrider-\n")
				must.NoError(t, os.WriteFile(filepath.Join(server.Home, profile), content, 0o644))
			}
			c := configOf(server)
			out, err := run(t, c, "input", "id -un\ncat; printf '\n%s\\n' \"$@\"", odd, "")
			must.NoError(t, err)
			must.Eq(t, "remote\ninput\n"+odd+"\n\n\n", out)
		})
	}
}

func TestStart_ReportsHowTheScriptEnds(t *testing.T) {
	c := configOf(sshdtest.Start(t))
	for script, want := range map[string]string{
		"echo some; echo x >&2; echo why >&2; exit 3": "the remote command ended with status 3: why",
		"kill -9 $$":       "the connection to " + c.String() + " was lost",
		"exec /no/program": "the remote command ended with status 127: sh: 1: exec: /no/program: not found",
		"echo too much >&2; yes err | head -c 100000 >&2; false": "the remote command ended with status 1: err",
	} {
		_, err := run(t, c, "", script)
		test.ErrorContains(t, err, want, test.Sprint(script))
	}
	out, err := run(t, c, "", "head -c 10000000 /dev/zero; echo note >&2")
	test.NoError(t, err)
	test.Len(t, 10_000_000, []byte(out))

	// a script that does not read its input
	_, err = run(t, c, strings.Repeat("x", 32<<20), "true")
	test.NoError(t, err)
}

func TestStart_ReportsAHostThatRunsNoCommands(t *testing.T) {
	for option, want := range map[string]string{
		"ForceCommand echo not here":    `runs no commands: its login shell (which must be sh, bash, dash or zsh) or a forced command wrote "not here"`,
		"ForceCommand exit 7":           `a forced command wrote ""`,
		"ForceCommand echo no >&2":      `a forced command wrote "no"`,
		"MaxSessions 0":                 "failed to connect to ",
		"ForceCommand kill -9 $PPID; :": "failed to connect to ",
	} {
		_, err := run(t, configOf(sshdtest.Start(t, sshdtest.Config(option))), "junk", "true")
		test.ErrorContains(t, err, want, test.Sprint(option))
	}
	server := sshdtest.Start(t, sshdtest.Shell("/usr/sbin/nologin"))
	_, err := run(t, configOf(server), "", "true")
	test.ErrorContains(t, err, `wrote "This account is currently not available."`)
}

// Run this test with -race, too.
func TestStart_CanBeClosedDuringAWrite(t *testing.T) {
	mark := testsupport.Mark()
	program, err := configOf(sshdtest.Start(t)).Start(t.Context(), "sleep "+mark+" & pid=$!; cat; kill $pid")
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
	must.Error(t, <-ended)
	testsupport.WaitSleepers(t, mark, 0)
}

func TestStart_LeaksNothing(t *testing.T) {
	c := configOf(sshdtest.Start(t))
	use := func() {
		_, err := run(t, c, "x", "exit 0")
		must.NoError(t, err)
		program, err := c.Start(t.Context(), "cat")
		must.NoError(t, err)
		must.NoError(t, program.Close())
	}
	use()
	goroutines, descriptors := runtime.NumGoroutine(), testsupport.Descriptors(t)
	for range 5 {
		use()
	}
	testsupport.Eventually(t, "the goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
	test.Eq(t, descriptors, testsupport.Descriptors(t))
}

func TestStart_EndsWithTheContext(t *testing.T) {
	server := sshdtest.Start(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections, but sends nothing
	must.NoError(t, err)
	defer silent.Close()
	c := configOf(server)
	c.Port = silent.Addr().(*net.TCPAddr).Port
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	_, err = c.Start(ctx, "true")
	must.ErrorIs(t, err, context.DeadlineExceeded)
	must.ErrorContains(t, err, "the connection to "+c.String()+" was closed: ")
	must.Less(t, connectTime, time.Since(begun))

	// Close ends ssh even if the ssh to a jump host is stuck
	link := server.Link()
	c = configOf(server)
	c.Jump = jumpOf(t, server, server)
	c.Jump.Port = link.Port
	program, err := c.Start(t.Context(), "cat")
	must.NoError(t, err)
	link.Cut()
	of := childrenOf(t, os.Getpid())
	must.Len(t, 1, of)
	number, err := strconv.Atoi(of[0])
	must.NoError(t, err)
	toJump := childrenOf(t, number)
	must.Len(t, 1, toJump)
	number, err = strconv.Atoi(toJump[0])
	must.NoError(t, err)
	must.NoError(t, unix.Kill(number, unix.SIGSTOP)) // only SIGKILL can end it now
	begun = time.Now()
	must.NoError(t, program.Close())
	must.Less(t, silentTime/2, time.Since(begun))
	testsupport.Eventually(t, "the ssh to the jump host ends", func() bool {
		return !testsupport.Exists("/proc/" + toJump[0])
	})
}

// childrenOf returns the ids of a process's children that run ssh.
func childrenOf(t *testing.T, pid int) (pids []string) {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	must.NoError(t, err)
	for _, list := range lists {
		content, err := os.ReadFile(list)
		must.NoError(t, err)
		for _, child := range strings.Fields(string(content)) {
			if name, _ := os.ReadFile("/proc/" + child + "/comm"); string(name) == "ssh\n" {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

func TestKeepAlive_ClosesAConnectionThatIsCut(t *testing.T) {
	server := sshdtest.Start(t)
	c := configOf(server)
	for _, jump := range []bool{false, true} {
		t.Run(fmt.Sprintf("jump host %t", jump), func(t *testing.T) {
			t.Parallel()
			link, config := server.Link(), c
			config.Port = link.Port
			if jump {
				config.Port, config.Jump = c.Port, &Hop{Host: c.Host, Port: link.Port, User: c.User, HostKeys: c.HostKeys}
			}
			program, err := config.Start(t.Context(), "sleep 25; cat") // an idle connection must stay open
			must.NoError(t, err)
			defer program.Close()
			_, err = io.WriteString(program, "x\n")
			must.NoError(t, err)
			echo, err := program.ReadLine()
			must.NoError(t, err)
			must.Eq(t, "x", echo)

			link.Cut()
			begun := time.Now()
			_, err = program.Read(make([]byte, 1))
			must.ErrorContains(t, err, "the connection to "+config.String()+" was lost: ")
			test.Less(t, 5*silentTime, time.Since(begun))
		})
	}
}

func TestStart_ReportsAConnectionClosedByTheHostAsLost(t *testing.T) {
	server := sshdtest.Start(t)
	program, err := configOf(server).Start(t.Context(), "cat")
	must.NoError(t, err)
	defer program.Close()
	server.Stop()
	_, err = program.Read(make([]byte, 1))
	must.ErrorContains(t, err, "was lost: ")
	must.NotEq(t, io.EOF, err)
}

// The test runs its own program as a child process, which starts ssh as a plugin does, and kills the child.
func TestStart_SSHEndsWithThePlugin(t *testing.T) {
	if port := os.Getenv("OUTRIDER_TEST_PORT"); port != "" {
		number, err := strconv.Atoi(port)
		must.NoError(t, err)
		hop := Hop{Host: "127.0.0.1", Port: number, User: os.Getenv("OUTRIDER_TEST_USER"),
			HostKeys: []string{os.Getenv("OUTRIDER_TEST_HOST_KEY")}}
		c := Config{Hop: hop, KeyFile: os.Getenv("OUTRIDER_TEST_KEY")}
		_, err = c.Start(t.Context(), "sleep "+os.Getenv("OUTRIDER_TEST_MARK")+" & pid=$!; cat; kill $pid")
		must.NoError(t, err)
		select {}
	}
	server := sshdtest.Start(t)
	mark := testsupport.Mark()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "OUTRIDER_TEST_PORT="+strconv.Itoa(server.Port), "OUTRIDER_TEST_KEY="+server.KeyFile,
		"OUTRIDER_TEST_HOST_KEY="+server.HostKey, "OUTRIDER_TEST_USER="+server.User, "OUTRIDER_TEST_MARK="+mark)
	must.NoError(t, cmd.Start())
	testsupport.WaitSleepers(t, mark, 1)
	children := childrenOf(t, cmd.Process.Pid)
	must.Len(t, 1, children)
	environment, err := os.ReadFile("/proc/" + children[0] + "/environ")
	must.NoError(t, err)
	must.Eq(t, "", string(environment))
	must.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	testsupport.WaitSleepers(t, mark, 0)
	testsupport.Eventually(t, "ssh ends", func() bool { return !testsupport.Exists("/proc/" + children[0]) })
}
