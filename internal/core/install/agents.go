// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// agent is a running Nomad agent, with what its command line says.
type agent struct {
	pid                int
	configs            []string // -config, absolute
	pluginDir, dataDir string   // -plugin-dir, -data-dir
	hostVolumes        string   // -host-volume-plugin-dir
	unit               string   // of systemd, empty if it is in none
}

// agents finds the Nomad agents of this machine. Only those of root and of this user count:
// any user can start a program that is named like one. Agents in another mount namespace are
// listed apart, since their paths mean something else here.
func (m machine) agents() (here []agent, elsewhere, others []int, err error) {
	entries, err := os.ReadDir(m.proc)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("failed to look for the agent: %w", err)
	}
	self, err := os.Readlink(filepath.Join(m.proc, "self/ns/mnt"))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("failed to look for the agent: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// all is read of this one process, also if its id is reused meanwhile
		process, err := os.OpenRoot(filepath.Join(m.proc, e.Name()))
		if err != nil {
			continue // it has ended
		}
		a, ok := readAgent(process, pid)
		namespace, nsErr := process.Readlink("ns/mnt")
		trusted := m.trusts(process)
		process.Close()
		switch {
		case !ok:
		case !trusted:
			others = append(others, pid)
		case nsErr != nil || namespace != self:
			elsewhere = append(elsewhere, pid)
		default:
			here = append(here, a)
		}
	}
	return here, elsewhere, others, nil
}

var uids = regexp.MustCompile(`(?m)^Uid:\t(\d+)\t(\d+)\t(\d+)\t(\d+)$`)

// trusts reports whether every user id of a process is root's or this user's: a set-user-ID
// program has the arguments of the user who started it.
func (m machine) trusts(process *os.Root) bool {
	status, err := process.ReadFile("status")
	ids := uids.FindStringSubmatch(string(status))
	if err != nil || ids == nil {
		return false
	}
	for _, id := range ids[1:] {
		if id != "0" && id != strconv.Itoa(os.Geteuid()) {
			return false
		}
	}
	return true
}

var systemUnit = regexp.MustCompile(`(?m):/system\.slice/(?:.*/)?([^/\n]+)\.service$`)

// readAgent reports whether a process is an agent. A process that this user may not look at
// is none.
func readAgent(process *os.Root, pid int) (agent, bool) {
	exe, err := process.Readlink("exe")
	if err != nil || filepath.Base(strings.TrimSuffix(exe, " (deleted)")) != "nomad" {
		return agent{}, false
	}
	line, err := process.ReadFile("cmdline")
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	if err != nil || len(args) < 2 || args[1] != "agent" {
		return agent{}, false
	}
	a := agent{pid: pid}
	cwd, _ := process.Readlink("cwd")
	for i, arg := range args {
		name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !given && i+1 < len(args) {
			value = args[i+1]
		}
		switch {
		case !strings.HasPrefix(arg, "-"):
		case name == "config" && filepath.IsAbs(value):
			a.configs = append(a.configs, filepath.Clean(value))
		case name == "config":
			a.configs = append(a.configs, filepath.Join(cwd, value))
		case name == "plugin-dir":
			a.pluginDir = value
		case name == "data-dir":
			a.dataDir = value
		case name == "host-volume-plugin-dir":
			a.hostVolumes = value
		}
	}
	cgroups, _ := process.ReadFile("cgroup")
	if unit := systemUnit.FindSubmatch(cgroups); unit != nil {
		a.unit = string(unit[1])
	}
	return a, true
}
