// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package inuse

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// target is a directory whose users are looked for.
type target struct {
	dir    string
	device uint64 // of its file system
	path   string // in its file system
}

// resolve finds out what the directories are.
func (s *scan) resolve(dirs []string) error {
	info, err := read(unix.AT_FDCWD, "/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	mounts := map[string]mount{}
	for line := range strings.Lines(info) {
		m := parseMount(line)
		mounts[m.id] = m
	}
	for _, dir := range dirs {
		var st unix.Statx_t
		const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
		if err := unix.Statx(unix.AT_FDCWD, dir, flags, unix.STATX_MNT_ID, &st); err != nil {
			return &os.PathError{Op: "look at", Path: dir, Err: err}
		}
		m, ok := mounts[strconv.FormatUint(st.Mnt_id, 10)]
		s.own, s.group = m.id, mounts[m.parent].peers()
		below, err := filepath.Rel(m.point, dir)
		if !ok || err != nil || strings.HasPrefix(below, "..") {
			return fmt.Errorf("failed to find the mount of %s", dir) // Linux before 5.8, or a path with links
		}
		s.targets = append(s.targets, target{dir: dir, device: m.device, path: filepath.Join(m.root, below)})
		s.devices[unix.Mkdev(st.Dev_major, st.Dev_minor)] = true
	}
	return nil
}

// mounts reports whether a mount is of a target, or of a directory in it, or has one as a
// layer. Parent is what it is mounted on.
func (s *scan) mounts(m, parent mount) bool {
	if s.source != "" && m.source == s.source && m.root == "/" {
		return m.id != s.own && (m.point != s.except || !parent.follows(s.group))
	}
	for _, t := range s.targets {
		if m.device == t.device && isBelow(m.root, t.path) {
			return true
		}
		if m.kind == "overlay" {
			for layer := range strings.FieldsFuncSeq(m.options, func(r rune) bool { return strings.ContainsRune("=:,", r) }) {
				if isBelow(layer, t.dir) {
					return true
				}
			}
		}
	}
	return false
}

// loops adds the loop devices whose file is of a target: no process has that open.
func (s *scan) loops() {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file") // the pattern is right
	for _, name := range files {
		file, err := os.ReadFile(name)
		for _, t := range s.targets {
			if err == nil && isBelow(strings.TrimSpace(string(file)), t.dir) {
				s.users = append(s.users, "loop device "+strings.Split(name, "/")[3]+" has a file of it open")
			}
		}
	}
}

// mount is a line of mountinfo, proc_pid_mountinfo(5).
type mount struct {
	id, parent, root, point, kind, source, options string
	device                                         uint64
	propagation                                    []string // "shared:1", "master:2"
}

// peers is the group of mounts that hear of what is mounted and unmounted on this one: "shared:1".
func (m mount) peers() string {
	for _, p := range m.propagation {
		if strings.HasPrefix(p, "shared:") {
			return p
		}
	}
	return ""
}

// follows reports whether what is unmounted on a mount of that group may be unmounted on this one, too.
func (m mount) follows(group string) bool {
	return group != "" && slices.ContainsFunc(m.propagation, func(p string) bool {
		return p == group || strings.HasPrefix(p, "master:") // of the group, or of one that has it as master
	})
}

// parseMount parses a line of any length: a user can mount an overlay of so many layers that its line has
// 95 kB, and moby/sys/mountinfo, which gives up at 64, would let that user keep every dataset in use.
func parseMount(line string) (m mount) {
	before, after, _ := strings.Cut(line, " - ")
	if f := strings.Fields(before); len(f) > 4 {
		a, b, _ := strings.Cut(f[2], ":")
		major, _ := strconv.ParseUint(a, 10, 32)
		minor, _ := strconv.ParseUint(b, 10, 32)
		m = mount{id: f[0], parent: f[1], propagation: f[min(6, len(f)):], root: unescape(f[3]), point: unescape(f[4]),
			device: unix.Mkdev(uint32(major), uint32(minor))}
	}
	if f := strings.Fields(after); len(f) > 2 {
		m.kind, m.source, m.options = f[0], unescape(f[1]), unescape(f[2])
	}
	return m
}

var escapes = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

func unescape(path string) string { return escapes.Replace(path) }

// isBelow reports whether a path is dir or in it. What was deleted is marked so in mountinfo.
func isBelow(path, dir string) bool {
	path = strings.TrimSuffix(path, "//deleted")
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

func read(dir int, name string) (string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, 4096)
	for {
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return "", &os.PathError{Op: "read", Path: name, Err: err}
		}
		if n == 0 {
			return string(buf), nil
		}
		if buf = buf[:len(buf)+n]; len(buf) == cap(buf) {
			buf = append(make([]byte, 0, 4*cap(buf)), buf...)
		}
	}
}

func readDir(dir int, name string) ([]string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	return list(fd)
}

func list(dir int) (names []string, err error) {
	buf := make([]byte, 8192)
	for {
		n, err := unix.ReadDirent(dir, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("getdents", err)
		}
		if n == 0 {
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

func readLink(dir int, name string) (string, error) {
	buf := make([]byte, 256)
	n, err := unix.Readlinkat(dir, name, buf)
	if err != nil {
		return "", &os.PathError{Op: "read", Path: name, Err: err}
	}
	return string(buf[:n]), nil
}
