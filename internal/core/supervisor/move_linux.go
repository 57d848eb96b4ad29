// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/launch"
	"github.com/outrider-dev/outrider/internal/core/wire"
)

// A running supervisor may be of another version, or have the surroundings of an earlier agent. It then executes this
// plugin's binary in place, and takes over this plugin's surroundings, which are the current agent's: a plugin does not
// outlive its agent. A supervisor that can't do so is killed, and this process starts another one. The tasks keep
// running in either case.

// fits reports whether a supervisor has this process's surroundings. It returns true if they can't be read.
func (h *hello) fits() bool {
	own := clientSurroundings()
	return own == nil || h.Surroundings != nil && *h.Surroundings == *own
}

// accepts reports whether the client uses a supervisor as it is. It does if this supervisor, or an earlier one, had
// this process's build and surroundings.
func (c *Client) accepts(h *hello) bool {
	fits := h.Build == buildID() && h.fits()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settled = c.settled || fits
	return c.settled
}

// move makes a supervisor execute this client's binary, with this process's surroundings. If it returns nil, the
// supervisor has done so or was killed, and the connection has ended.
func (c *Client) move(ctx context.Context, conn *connection, h *hello) error {
	req := &request{Op: opUpgrade, Build: buildID()}
	var changes []string
	if h.Build != buildID() {
		changes = append(changes, fmt.Sprintf("replaced the supervisor of another version (pid %d, build %s) with this "+
			"plugin's supervisor (build %s)", h.PID, h.Build, buildID()))
	}
	own := clientSurroundings()
	if h.Surroundings != nil && !h.fits() {
		changes = append(changes, fmt.Sprintf("supervisor %d took over this agent's changed settings (%s)", h.PID,
			h.Surroundings.differences(own)))
		req.Surroundings = own
	}
	c.noteMove(strings.Join(changes, "; ")) // before the upgrade ends the connection
	err := upgradeOver(ctx, conn, req)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errUnfit):
		c.mu.Lock()
		again := c.killed == h.PID
		c.killed = h.PID
		c.mu.Unlock()
		if again {
			c.noteMove("")
			return fmt.Errorf("%w, and this process can't kill that supervisor", errUnfit)
		}
		c.noteMove(fmt.Sprintf("replaced supervisor %d, which can't take over this agent's changed settings (%s)", h.PID,
			h.Surroundings.differences(own)))
		c.replace(conn)
		return nil
	}
	c.noteMove("")
	return err
}

// upgradeOver requests an upgrade over a connection. It tries each binary until an upgrade ends the connection, and
// then returns nil.
func upgradeOver(ctx context.Context, conn *connection, req *request) (err error) {
	for _, open := range binaries {
		var binary *os.File
		if binary, err = open(); err != nil {
			continue
		}
		files := []*os.File{binary}
		if req.Surroundings != nil {
			var namespaces []*os.File
			namespaces, err = openNamespaces()
			files = append(files, namespaces...)
		}
		if err == nil {
			_, err = roundTrip(ctx, conn, req, files...)
		}
		wire.CloseAll(files)
		if errors.Is(err, wire.ErrLost) {
			return nil
		}
		if errors.Is(err, errUnfit) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

func (c *Client) noteMove(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moved = what
}

// reportMove logs how the previous supervisor was replaced, once its successor has answered.
func (c *Client) reportMove() {
	c.mu.Lock()
	moved := c.moved
	c.moved = ""
	c.mu.Unlock()
	if moved != "" {
		c.cfg.Log("%s; its tasks keep running", moved)
	}
}

// refused records that a supervisor was not moved. settle tries again to move it.
func (c *Client) refused(h *hello, why error) {
	c.cfg.Log("supervisor %d was not upgraded: %v", h.PID, why)
	fits := h.fits() // a supervisor of another build is good enough, if it has these surroundings
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settled = c.settled || fits
	c.other = h
}

// settleTime bounds how long a start waits for a supervisor that can't be moved yet: another start may be in
// progress, or the disk may be full.
const settleTime = startTimeout + openTime + 20*time.Second

// settle waits until the supervisor has this process's surroundings, which the tasks that it starts inherit.
func (c *Client) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		conn, err := c.wire.Connect(ctx)
		if err == nil {
			c.mu.Lock()
			settled, h := c.settled, c.other
			c.mu.Unlock()
			if settled {
				return nil
			}
			err = c.move(ctx, conn, h)
		} else if !errors.Is(err, wire.ErrLost) {
			return err
		}
		if err == nil {
			continue
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("the supervisor does not take over this agent's namespaces and limits: %w", err)
		}
	}
}

// clientSurroundings returns the surroundings of this process, or nil if they can't be read.
var clientSurroundings = sync.OnceValue(func() *surroundings {
	s, err := ownSurroundings()
	if err != nil {
		return nil
	}
	return s
})

// softNoFile returns the soft limit of open files that this process was started with. The Go runtime raises the limit
// and restores it in each child, so softNoFile starts a child that prints it.
func softNoFile(own [2]uint64) uint64 {
	soft, hard := own[0], own[1]
	if soft != hard-1 { // Go raises it to hard-1: any other value is the initial one
		return soft
	}
	for _, open := range binaries {
		binary, err := open()
		if err != nil {
			continue
		}
		above, err := launch.Above(binary, binary)
		if err != nil {
			binary.Close()
			continue
		}
		cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", binary.Fd()))
		cmd.Args = []string{argv0, roleNoFile}
		cmd.Env = []string{}
		cmd.ExtraFiles = []*os.File{above}
		out, err := cmd.Output()
		above.Close()
		binary.Close()
		if err != nil {
			continue
		}
		if n, err := strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64); err == nil {
			return n
		}
	}
	return soft
}

// printNoFile is the role of softNoFile's child.
func printNoFile() {
	launch.RestoreNoFile()
	var l unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	fmt.Println(l.Cur)
}
