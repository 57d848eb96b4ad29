// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package supervisor

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/launch"
)

// surroundings are the attributes that a process inherits from its parent (fork(2), execve(2)): a plugin from its
// agent, and a task from its supervisor. A supervisor outlives the agent that started it, so it takes over the
// surroundings of a later agent before it starts a task for that agent. Package launch sets the attributes that do
// not depend on the agent.
//
// If two values are equal (==), there is nothing to take over.
type surroundings struct {
	Namespaces [len(enterable)]uint64 `json:"namespaces"` // inodes, in the order of enterable
	Limits     [16][2]uint64          `json:"limits"`     // soft and hard, by resource of setrlimit(2)
	Bounding   uint64                 `json:"bounding"`   // capability bounding set, capabilities(7)

	NoNewPrivileges bool `json:"no_new_privileges,omitempty"`

	// Groups are the supplementary groups, in the format of proc_pid_status(5).
	Groups string `json:"groups,omitempty"`

	// Fixed are the attributes that no running process can take over, one "name: value" per line.
	Fixed string `json:"fixed"`
}

// enterable lists the namespaces that a running process can enter with setns(2). A name is a file in /proc/self/ns.
var enterable = [...]struct {
	name string
	kind int
}{
	{"mnt", unix.CLONE_NEWNS}, {"net", unix.CLONE_NEWNET}, {"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS},
	{"cgroup", unix.CLONE_NEWCGROUP},
}

// errUnfit is the error for surroundings that a supervisor can't take over.
var errUnfit = errors.New("supervisor can't take over this agent's namespaces, limits and privileges")

// ownSurroundings returns this process's surroundings, with the soft limit of open files that it was started with.
func ownSurroundings() (*surroundings, error) {
	s, err := readSurroundings()
	if err != nil {
		return nil, err
	}
	s.Limits[unix.RLIMIT_NOFILE][0] = softNoFile(s.Limits[unix.RLIMIT_NOFILE])
	return s, nil
}

// readSurroundings reads the calling thread's surroundings. Go may have raised the soft limit of open files.
func readSurroundings() (*surroundings, error) {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return nil, err
	}
	s := &surroundings{}
	var fixed []string
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch name {
		case "CapBnd":
			s.Bounding, err = strconv.ParseUint(value, 16, 64)
		case "NoNewPrivs":
			s.NoNewPrivileges = value == "1"
		case "Groups":
			s.Groups = value
		case "Seccomp", "Seccomp_filters": // the mode, and how many filters there are
			fixed = append(fixed, name+": "+value)
		}
		if err != nil {
			return nil, fmt.Errorf("failed to read %s of /proc/thread-self/status: %w", name, err)
		}
	}
	for resource := range s.Limits {
		var l unix.Rlimit
		if err := unix.Getrlimit(resource, &l); err != nil {
			return nil, fmt.Errorf("failed to read resource limit %d: %w", resource, err)
		}
		s.Limits[resource] = [2]uint64{l.Cur, l.Max}
	}
	for i, ns := range enterable {
		s.Namespaces[i] = namespaceInode(ns.name)
	}
	for _, name := range []string{"user", "pid", "time"} {
		fixed = append(fixed, fmt.Sprintf("namespace %s: %d", name, namespaceInode(name)))
	}
	bits, _ := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	label, _ := os.ReadFile("/proc/thread-self/attr/current") // of SELinux or AppArmor; empty without them
	fixed = append(fixed, fmt.Sprintf("securebits: %#x", bits), "label: "+string(bytes.TrimRight(label, "\n\x00")))
	s.Fixed = strings.Join(fixed, "\n")
	return s, nil
}

// namespaceInode returns the inode of the calling thread's namespace, or 0 if the kernel lacks this kind of namespace.
func namespaceInode(name string) uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/"+name, &st) != nil {
		return 0
	}
	return st.Ino
}

// openNamespaces opens the enterable namespaces of this process; the caller closes them.
func openNamespaces() (files []*os.File, err error) {
	for _, ns := range enterable {
		f, err := os.Open("/proc/self/ns/" + ns.name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

// id returns a hash of the surroundings.
func (s *surroundings) id() string {
	b, _ := json.Marshal(s) // can't fail: it contains only numbers and strings
	sum := fnv.New64a()
	sum.Write(b)
	return hex.EncodeToString(sum.Sum(nil))
}

// differences lists the attributes that differ, for a message.
func (s *surroundings) differences(other *surroundings) string {
	var list []string
	add := func(differs bool, what string) {
		if differs {
			list = append(list, what)
		}
	}
	for i, ns := range enterable {
		add(s.Namespaces[i] != other.Namespaces[i], "namespace "+ns.name)
	}
	add(s.Limits != other.Limits, "resource limits")
	add(s.Bounding != other.Bounding, "capability bounding set")
	add(s.NoNewPrivileges != other.NoNewPrivileges, "no_new_privs")
	add(s.Groups != other.Groups, "groups")
	its := strings.Split(other.Fixed, "\n")
	for _, line := range strings.Split(s.Fixed, "\n") {
		name, _, _ := strings.Cut(line, ":")
		add(!slices.Contains(its, line), name)
	}
	return strings.Join(list, ", ")
}

// take applies the surroundings to the calling thread, and the limits to the whole process. The thread may then
// execute a program, which keeps the surroundings; do not use it for anything else, even after an error. The given
// files are open namespaces of the kinds in enterable. The error wraps errUnfit if this process cannot take over the
// surroundings.
func (s *surroundings) take(namespaces []*os.File) error {
	has, err := readSurroundings()
	if err != nil {
		return err
	}
	if s.Bounding&^has.Bounding != 0 || has.NoNewPrivileges && !s.NoNewPrivileges {
		return fmt.Errorf("%w: %s", errUnfit, s.differences(has))
	}
	launch.DefaultScheduling()
	if err := enter(namespaces); err != nil {
		return fmt.Errorf("%w: %w", errUnfit, err)
	}
	if s.Groups != has.Groups {
		if err := s.setGroups(); err != nil {
			return fmt.Errorf("%w: failed to set the groups: %w", errUnfit, err)
		}
	}
	for capability := range 64 {
		if has.Bounding&^s.Bounding&(1<<capability) == 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(capability), 0, 0, 0); err != nil {
			return fmt.Errorf("%w: failed to reduce the capability bounding set: %w", errUnfit, err)
		}
	}
	if s.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("%w: failed to set no_new_privs: %w", errUnfit, err)
		}
	}
	for resource, l := range s.Limits { // last, since a low limit may stop this program
		// the limit of open files is set even if equal: otherwise, Go restores the initial limit at the execve
		if l == has.Limits[resource] && resource != unix.RLIMIT_NOFILE {
			continue
		}
		if err := unix.Prlimit(0, resource, &unix.Rlimit{Cur: l[0], Max: l[1]}, nil); err != nil {
			return fmt.Errorf("%w: failed to set resource limit %d: %w", errUnfit, resource, err)
		}
	}
	return nil
}

// setGroups sets the supplementary groups of the calling thread only; [unix.Setgroups] sets those of all threads.
func (s *surroundings) setGroups() error {
	var groups []uint32
	for _, field := range strings.Fields(s.Groups) {
		gid, err := strconv.ParseUint(field, 10, 32)
		if err != nil {
			return err
		}
		groups = append(groups, uint32(gid))
	}
	list := unsafe.Pointer(unsafe.SliceData(groups))
	_, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(list), 0)
	if e != 0 {
		return e
	}
	return nil
}

// enter moves the calling thread into each of the namespaces that it is not in yet.
func enter(namespaces []*os.File) error {
	for _, f := range namespaces {
		kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
		if err != nil {
			return fmt.Errorf("failed to identify a namespace: %w", err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			return fmt.Errorf("failed to identify a namespace: %w", err)
		}
		for _, ns := range enterable {
			if ns.kind != kind || st.Ino == namespaceInode(ns.name) {
				continue
			}
			if kind == unix.CLONE_NEWNS { // setns(2) fails while other threads share the working directory
				err = unix.Unshare(unix.CLONE_FS)
			}
			if err == nil {
				err = unix.Setns(int(f.Fd()), kind)
			}
			if err != nil {
				return fmt.Errorf("failed to enter namespace %s: %w", ns.name, err)
			}
		}
	}
	return nil
}
