// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// link is a network namespace, and a pair of devices between it and this machine. It lasts as long as this process has
// the namespace open. So the address stays the host's while that is halted, and goes no other way.
type link struct {
	namespace   *os.File // nil: no link
	name        string   // of the device on this machine
	here, there string   // addresses
}

// newLink makes a link that is down. It chooses a network of four addresses that no device of this machine has, in the
// range for tests (RFC 2544).
func newLink(ctx context.Context) (l link, err error) {
	taken, err := net.InterfaceAddrs()
	if err != nil {
		return link{}, err
	}
	for free := false; !free; {
		n := rand.Uint32N(1<<15) * 4
		l.name = fmt.Sprintf("outr%x", n)
		base := []byte{198, 18 + byte(n>>16), byte(n >> 8), byte(n)} //nolint:gosec // its bytes
		l.here = net.IP{base[0], base[1], base[2], base[3] + 1}.String()
		l.there = net.IP{base[0], base[1], base[2], base[3] + 2}.String()
		free = !slices.ContainsFunc(taken, func(a net.Addr) bool {
			own, ok := a.(*net.IPNet)
			return ok && own.Contains(net.ParseIP(l.here))
		})
	}
	if l.namespace, err = newNamespace(); err != nil {
		return link{}, fmt.Errorf("failed to make a network: %w", err)
	}
	for _, args := range [][]string{
		{"ip", "link", "add", l.name, "type", "veth", "peer", "name", "eth0", "netns", l.path()},
		{"ip", "address", "add", l.here + "/30", "dev", l.name},
		{"ip", "link", "set", l.name, "up"},
		l.inside("link", "set", "lo", "up"),
		l.inside("address", "add", l.there+"/30", "dev", "eth0"),
	} {
		if err := run(ctx, args...); err != nil {
			return link{}, errors.Join(err, l.remove())
		}
	}
	return l, nil
}

// newNamespace makes a network namespace.
func newNamespace() (f *os.File, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			f, err = os.Open("/proc/thread-self/ns/net")
		}
	}()
	<-done
	return f, err
}

// path is a name of the namespace for other processes.
func (l link) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), l.namespace.Fd()) }

// inside is a command of ip on the host's side.
func (l link) inside(args ...string) []string {
	return append([]string{"nsenter", "--net=" + l.path(), "ip"}, args...)
}

// set sets the host's side up or down. This machine's stays up, since packets would take another route without it.
func (l link) set(state string) error {
	if l.namespace == nil {
		return errors.New("the simulated host has no network of its own")
	}
	return run(context.Background(), l.inside("link", "set", "eth0", state)...)
}

// remove removes the link. One that is none is no error.
func (l *link) remove() error {
	if l.namespace == nil {
		return nil
	}
	err := run(context.Background(), "ip", "link", "delete", l.name)
	if _, gone := net.InterfaceByName(l.name); gone != nil {
		err = nil
	}
	if err == nil {
		err = l.namespace.Close()
		l.namespace = nil
	}
	return err
}

// run runs a program; the error has its last line.
func run(ctx context.Context, args ...string) error {
	path, err := find(args[0])
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, path, args[1:]...).CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("%s: %s (%w)", strings.Join(args, " "), lines[len(lines)-1], err)
	}
	return nil
}
