// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package task

// Isolation selects what a program does not share with the host.
type Isolation struct {
	// Tmp replaces /tmp and /var/tmp by the directory tmp in TaskDir, which is made if it is missing.
	Tmp bool `json:"tmp,omitempty"`

	// IPC separates System V IPC, POSIX message queues (ipc_namespaces(7)) and /dev/shm.
	IPC bool `json:"ipc,omitempty"`

	// PID separates process ids and /proc (pid_namespaces(7)). The program is not the namespace's init.
	PID bool `json:"pid,omitempty"`

	// Hostname is the host name that the program sees (uts_namespaces(7)), empty for the host's own.
	Hostname string `json:"hostname,omitempty"`

	// Files replace files of the host for the program. They are read-only.
	Files []File `json:"files,omitempty"`
}

// File is a small file that only the program sees. Path is absolute, in directories that only root can change.
type File struct {
	Path    string `json:"path"`
	Content string `json:"content"`
}

// mounts reports whether the program needs mounts for its isolation.
func (i *Isolation) mounts() bool { return i.Tmp || i.IPC || i.PID || len(i.Files) > 0 }
