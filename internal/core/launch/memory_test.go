// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package launch

import (
	"os"
	"syscall"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// TestAbove_ProtectsTheProgramFromThePipeOfAFork executes a program whose descriptor follows that of the child's file.
func TestAbove_ProtectsTheProgramFromThePipeOfAFork(t *testing.T) {
	nothingLeft(t)
	at := func(path string, number int) *os.File {
		f, err := os.Open(path)
		must.NoError(t, err)
		defer f.Close()
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, number)
		must.NoError(t, err)
		must.Eq(t, number, fd)
		dup := os.NewFile(uintptr(fd), path)
		t.Cleanup(func() { dup.Close() })
		return dup
	}
	null, program := at(os.DevNull, 700), at("/bin/true", 701)
	execute := func(file *os.File) error {
		files := []uintptr{file.Fd(), file.Fd(), file.Fd()}
		pid, err := syscall.ForkExec(fdPath(int(program.Fd())), []string{"true"}, &syscall.ProcAttr{Files: files})
		if err != nil {
			return err
		}
		_, err = unix.Wait4(pid, nil, 0, nil)
		return err
	}
	test.ErrorIs(t, execute(null), unix.EACCES, test.Sprint("if ForkExec protects the program now, remove Above"))
	above, err := Above(program, null)
	must.NoError(t, err)
	defer above.Close()
	test.NoError(t, execute(above))
}
