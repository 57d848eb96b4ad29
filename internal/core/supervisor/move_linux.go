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

// A supervisor that is there already may be of another version, and have the surroundings of an earlier agent. It
// executes this plugin's binary in its own place then, and takes over the plugin's surroundings, which are its agent's:
// a plugin does not outlive its agent. One that can't do so is killed, and another one started by this process. The
// tasks go on in either case.

// accepts reports whether a supervisor has this process's build and surroundings, or had them when it was first asked.
func (c *Client) accepts(h *hello) bool {
	own := clientSurroundings()
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.Build == buildID() && (own == nil || h.Surroundings != nil && *h.Surroundings == *own) {
		c.settled = true
	}
	return c.settled
}

// move has a supervisor execute this client's binary, with this process's surroundings. Without an error the
// supervisor has done so, or was killed: the connection is over, and what was done is returned for the log.
func (c *Client) move(ctx context.Context, conn *connection, h *hello) (done string, err error) {
	binary, err := openBinary()
	if err != nil {
		return "", err
	}
	files := []*os.File{binary}
	defer func() { wire.CloseAll(files) }()
	req := &request{Op: opUpgrade, Build: buildID()}
	var changes []string
	if h.Build != buildID() {
		changes = append(changes, fmt.Sprintf("replaced the supervisor of another version (pid %d, build %s) by this "+
			"plugin's (build %s)", h.PID, h.Build, buildID()))
	}
	if own := clientSurroundings(); own != nil && h.Surroundings != nil && *h.Surroundings != *own {
		changes = append(changes, fmt.Sprintf("supervisor %d took over what differs in this agent (%s)", h.PID,
			h.Surroundings.differences(own)))
		req.Surroundings = own
		namespaces, err := openNamespaces()
		files = append(files, namespaces...)
		if err != nil {
			return "", fmt.Errorf("failed to open the namespaces of this process: %w", err)
		}
	}
	_, err = roundTrip(ctx, conn, req, files...)
	switch {
	case errors.Is(err, wire.ErrLost):
		return strings.Join(changes, "; "), nil
	case errors.Is(err, errUnfit):
		c.replace(conn)
		return fmt.Sprintf("replaced supervisor %d, which can't take over what differs in this agent (%s)", h.PID,
			h.Surroundings.differences(clientSurroundings())), nil
	}
	return "", err
}

// refused notes that a supervisor could not be moved now.
func (c *Client) refused(h *hello, why error) {
	c.cfg.Log("supervisor %d was not upgraded: %v", h.PID, why)
	own := clientSurroundings()
	c.mu.Lock()
	defer c.mu.Unlock()
	if own == nil || h.Surroundings != nil && *h.Surroundings == *own {
		c.settled = true // its build will do
	}
	c.other = h
}

// settleTime bounds how long a start waits for a supervisor that is not to be moved now: another start may be under
// way, or the disk full.
const settleTime = 30 * time.Second

// settle returns when what the supervisor starts gets the surroundings of this process.
func (c *Client) settle(ctx context.Context) error {
	for deadline := time.Now().Add(settleTime); ; time.Sleep(100 * time.Millisecond) {
		conn, err := c.wire.Connect(ctx)
		if err != nil {
			return err
		}
		c.mu.Lock()
		settled, h := c.settled, c.other
		c.mu.Unlock()
		if settled {
			return nil
		}
		_, err = c.move(ctx, conn, h)
		if err != nil && time.Now().After(deadline) {
			return fmt.Errorf("the supervisor does not take over this agent's namespaces and limits: %w", err)
		}
	}
}

// clientSurroundings are those of this process, with the soft limit of open files that it was started with; nil where
// they can't be read.
var clientSurroundings = sync.OnceValue(func() *surroundings {
	s, err := ownSurroundings()
	if err != nil {
		return nil
	}
	s.Limits[unix.RLIMIT_NOFILE][0] = softNoFile(s.Limits[unix.RLIMIT_NOFILE])
	return s
})

// softNoFile is the soft limit of open files that this process was started with. Go raises its own and restores it in
// each child, so a child tells it.
func softNoFile(own [2]uint64) uint64 {
	soft, hard := own[0], own[1]
	if soft != hard-1 { // what Go raises it to
		return soft
	}
	openSelf := func() (*os.File, error) { return openHigh("/proc/self/exe") } // for a kernel that executes no memfd
	for _, open := range []func() (*os.File, error){openBinary, openSelf} {
		binary, err := open()
		if err != nil {
			continue
		}
		cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", binary.Fd()))
		cmd.Args = []string{argv0, roleNoFile}
		cmd.Env = []string{}
		out, err := cmd.Output()
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

// printNoFile is the role of the child.
func printNoFile() {
	launch.RestoreNoFile()
	var l unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &l)
	fmt.Println(l.Cur)
}
