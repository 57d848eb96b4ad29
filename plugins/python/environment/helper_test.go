// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// role is the environment variable that makes the test binary run one of the helpers below instead of tests.
const role = "OUTRIDER_ENVIRONMENT_TEST"

func TestMain(m *testing.M) {
	what, argument, isHelper := strings.Cut(os.Getenv(role), " ")
	switch what {
	case "get":
		helpGet(argument)
	case "block":
		helpBlock(argument)
	case "churn":
		helpChurn(argument)
	case "swap":
		helpSwap(argument)
	}
	if isHelper {
		os.Exit(0)
	}
	code := m.Run()
	if left := leftOvers(); left != "" && code == 0 {
		fmt.Fprintln(os.Stderr, "left at the end:", left)
		code = 1
	}
	os.Exit(code)
}

// leftOvers lists the files and goroutines that tests have left open or running.
func leftOvers() string {
	var left []string
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.Contains(target, "environment-test-") {
			left = append(left, fd+" -> "+target)
		}
	}
	// a goroutine may still be exiting after a test has waited for it
	for end := time.Now().Add(time.Minute); runtime.NumGoroutine() > 1 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > 1 {
		stacks := make([]byte, 1<<20)
		left = append(left, fmt.Sprintf("%d goroutines: %s", n, stacks[:runtime.Stack(stacks, true)]))
	}
	return strings.Join(left, ", ")
}

// peer is a helper: this binary in another process. The kernel kills it when the test's process ends.
type peer struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// startPeer starts a helper with an argument. The parameter as is the helper's user, or nil for this process's user.
func startPeer(t testing.TB, as *syscall.Credential, what, argument string) *peer {
	t.Helper()
	cmd := exec.Command(reachableBinary(t, as), "-test.run=^$")
	cmd.Env = append(os.Environ(), role+"="+what+" "+argument)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if as != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: as.Uid, Gid: as.Gid}
	}
	in, err := cmd.StdinPipe()
	must.NoError(t, err)
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	return &peer{cmd, in, bufio.NewReader(out)}
}

// says reads the next line that the helper prints, which must be want.
func (p *peer) says(t testing.TB, want string) {
	t.Helper()
	line, err := p.out.ReadString('\n')
	must.NoError(t, err)
	must.Eq(t, want+"\n", line)
}

// reachableBinary returns the path of this test binary. If the parameter as is set, the path is that of a copy, because
// another user may not be able to reach the binary itself.
func reachableBinary(t testing.TB, as *syscall.Credential) string {
	t.Helper()
	self, err := os.Executable()
	must.NoError(t, err)
	if as == nil {
		return self
	}
	content, err := os.ReadFile(self)
	must.NoError(t, err)
	reachable := filepath.Join(testDir(t), "test")
	must.NoError(t, os.WriteFile(reachable, content, 0o755))
	return reachable
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		os.Exit(1)
	}
}

func helperCache(dir string) *Cache { return Open(Config{Dir: dir, Builder: builder()}) }

// helpGet waits for a line on stdin, gets an environment, and prints whether it was in the cache.
func helpGet(dir string) {
	fmt.Println("ready")
	_, err := bufio.NewReader(os.Stdin).ReadString('\n')
	fatal(err)
	e, err := helperCache(dir).Get(context.Background(), Spec{Key: "k", Build: building(300)})
	fatal(err)
	fatal(checkTree(e.Dir, 300))
	fmt.Println("hit", e.Hit)
	e.Release()
}

func helpBlock(dir string) {
	_, err := helperCache(dir).Get(context.Background(), Spec{Key: "k", Build: func(ctx context.Context, dir,
		scratch string) error {
		fatal(building(30)(ctx, dir, scratch))
		fmt.Println("building")
		testsupport.BlockUntilKilled()
		return nil
	}})
	fatal(err)
}

// helpChurn gets, acquires, releases and removes environments, as plugins do, until it is killed.
func helpChurn(dir string) {
	fmt.Println("ready")
	for n := range 3 {
		go func() {
			c := helperCache(dir)
			c.cfg.MaxSize = 1
			for i := 0; ; i++ {
				e, err := c.Get(context.Background(), Spec{Key: strconv.Itoa(rand.IntN(2)), Fresh: time.Millisecond,
					Build: building(30)})
				fatal(err)
				fatal(checkTree(e.Dir, 30))
				state := filepath.Join(filepath.Dir(dir), fmt.Sprintf("task-%d-%d-%d", os.Getpid(), n, i))
				fatal(os.Mkdir(state, 0o700))
				fatal(e.Acquire(state))
				e.Release()
				fatal(checkTree(e.Dir, 30)) // Acquire protects it after Release
				fatal(os.Remove(state))
				fatal(c.Tidy(context.Background()))
			}
		}()
	}
	select {}
}

// helpSwap reads lines, each with a tree and a directory for links. Until the next line, it swaps files and a directory
// of the tree with links to victim/secret and victim, and back.
func helpSwap(victim string) {
	lines := bufio.NewScanner(os.Stdin)
	var stop chan struct{}
	for lines.Scan() {
		if stop != nil {
			stop <- struct{}{}
		}
		tree, own, _ := strings.Cut(lines.Text(), " ")
		fatal(os.Chdir(tree)) // relative paths lead into the tree even after it was moved
		fatal(os.Symlink(victim, own+"/directory"))
		fatal(os.Symlink(victim+"/secret", own+"/file"))
		in, err := os.Open(own)
		fatal(err)
		names, err := filepath.Glob("lib/package2/*")
		fatal(err)
		stop = make(chan struct{})
		go func() {
			defer in.Close()
			for {
				for _, name := range append(names, "lib/package1") {
					link := "file"
					if name == "lib/package1" {
						link = "directory"
					}
					// the swaps fail once sealing has changed the owner of the tree
					if unix.Renameat2(unix.AT_FDCWD, name, int(in.Fd()), link, unix.RENAME_EXCHANGE) == nil {
						_ = unix.Renameat2(unix.AT_FDCWD, name, int(in.Fd()), link, unix.RENAME_EXCHANGE)
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		fmt.Println("swapping")
	}
}

func checkTree(dir string, files int) error {
	for i := range files {
		file := filepath.Join(dir, "lib", fmt.Sprintf("package%d", i%10), fmt.Sprintf("module%d.py", i))
		if content, err := os.ReadFile(file); err != nil || string(content) != "x = 1\n" {
			return fmt.Errorf("%s has %q, %w", file, content, err)
		}
	}
	_, err := os.Stat(filepath.Join(dir, "bin", "python3"))
	return err
}
