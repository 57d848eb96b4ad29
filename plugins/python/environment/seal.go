package environment

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/internal/core/builders"
)

// seal makes a tree ours and read-only, but for dir itself, to which publish does that.
// The builder may still have files and directories of it open, so each directory
// is taken over before it is read (nobody else can change what is in it after
// that), and is reached from its parent's descriptor, never by its path. What he writes to an open
// file later changes its times, and is noticed at the next Get.
func (s *store) seal(dir string) error {
	fd, err := openDir(unix.AT_FDCWD, dir)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	return s.sealDir(fd, "", 0)
}

// sealDir closes fd. rel is its path in the environment, for errors and links.
func (s *store) sealDir(fd int, rel string, depth int) error {
	defer unix.Close(fd)
	if depth > maxDepth {
		return errTooDeep
	}
	fail := func(name string, err error) error {
		return &os.PathError{Op: "seal", Path: path.Join(rel, name), Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail("", err)
	}
	if err := s.checkOwner(rel, &st); err != nil {
		return err
	}
	if s.builder != nil {
		if err := unix.Fchown(fd, os.Geteuid(), os.Getegid()); err != nil {
			return fail("", err)
		}
	}
	if err := unix.Fchmod(fd, 0o700); err != nil {
		return fail("", err)
	}
	names, err := readNames(fd)
	if err != nil {
		return fail("", err)
	}
	for _, name := range names {
		if err := fstatat(fd, name, &st); err != nil {
			return fail(name, err)
		}
		child := path.Join(rel, name)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			sub, err := openDir(fd, name)
			if err != nil {
				return fail(name, err)
			}
			if err := s.sealDir(sub, child, depth+1); err != nil {
				return err
			}
		case unix.S_IFREG:
			if err := s.sealFile(fd, name, child, &st); err != nil {
				return err
			}
		case unix.S_IFLNK:
			target, err := readLink(fd, name)
			if err != nil {
				return fail(name, err)
			}
			if path.IsAbs(target) {
				err = s.linkInterpreter(fd, name, child, target)
			} else if err = checkLink(child, target); err == nil {
				if err = s.take(fd, name); err != nil {
					err = fail(name, err)
				}
			}
			if err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s is neither a file, a directory nor a link", child)
		}
	}
	if rel == "" {
		return nil
	}
	if err := unix.Fchmod(fd, 0o555); err != nil {
		return fail("", err)
	}
	return nil
}

func (s *store) sealFile(fd int, name, rel string, st *unix.Stat_t) error {
	if err := s.checkOwner(rel, st); err != nil {
		return err
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		return fmt.Errorf("%s is to run as another user (set-user-ID or set-group-ID)", rel)
	}
	mode := uint32(0o444)
	if st.Mode&0o111 != 0 {
		mode = 0o555
	}
	var err error
	if st.Nlink > 1 { // it could be changed where it is linked, too
		err = copyInPlace(fd, name)
	} else {
		err = s.take(fd, name)
	}
	if err == nil {
		err = retry(func() error { return unix.Fchmodat(fd, name, mode, 0) })
	}
	if err != nil {
		return &os.PathError{Op: "seal", Path: rel, Err: err}
	}
	return nil
}

func (s *store) take(fd int, name string) error {
	if s.builder == nil {
		return nil
	}
	return unix.Fchownat(fd, name, os.Geteuid(), os.Getegid(), unix.AT_SYMLINK_NOFOLLOW)
}

// checkOwner refuses what the builder linked or moved from elsewhere.
func (s *store) checkOwner(rel string, st *unix.Stat_t) error {
	if want := s.builtBy(); int(st.Uid) != want {
		return fmt.Errorf("%s belongs to user %d instead of %d, who built it", path.Join(".", rel), st.Uid, want)
	}
	return nil
}

// builtBy is the user that builds.
func (s *store) builtBy() int {
	if s.builder == nil {
		return os.Geteuid()
	}
	return int(s.builder.UID)
}

func copyInPlace(fd int, name string) error {
	in, err := openFile(fd, name, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := unix.Unlinkat(fd, name, 0); err != nil {
		return err
	}
	out, err := openFile(fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if closing := out.Close(); err == nil {
		err = closing
	}
	return err
}

func openFile(at int, name string, flags int) (*os.File, error) {
	var fd int
	err := retry(func() (err error) { fd, err = unix.Openat(at, name, flags|unix.O_CLOEXEC, 0o600); return err })
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// checkLink allows relative links that stay inside. A ".." is only allowed at the start, where it is sure which
// directory it leads to.
func checkLink(rel, target string) error {
	below := strings.Count(rel, "/") // how many ".." lead to the environment itself
	parts := strings.Split(target, "/")
	for len(parts) > 0 && (parts[0] == ".." || parts[0] == "." || parts[0] == "") {
		if parts[0] == ".." {
			below--
		}
		parts = parts[1:]
	}
	for _, p := range parts {
		if p == ".." {
			below = -1
		}
	}
	if below < 0 {
		return fmt.Errorf("%s is a link to %s, outside of the environment", rel, target)
	}
	return nil
}

// linkInterpreter allows an absolute link to the build's interpreter alone, whatever its name is (PyPy's is bin/pypy3).
// The link is replaced by one to the interpreter's own path: on the way of the builder's there may be links of other
// users, or /proc/PID, which lead elsewhere later.
func (s *store) linkInterpreter(fd int, name, rel, target string) error {
	python, err := filepath.EvalSymlinks(s.python)
	if err != nil {
		return fmt.Errorf("the interpreter of the environment is not there: %w", err)
	}
	info, err := os.Lstat(python)
	if err != nil {
		return fmt.Errorf("the interpreter of the environment is not there: %w", err)
	}
	at, err := os.Stat(target)
	if err != nil {
		return fmt.Errorf("%s is a link to %s, outside of the environment, where nothing is: %w", rel, target, err)
	}
	if !os.SameFile(at, info) {
		return fmt.Errorf("%s is a link to %s, outside of the environment, and not to its interpreter, %s",
			rel, target, python)
	}
	if python == s.dir || strings.HasPrefix(python, s.dir+"/") || !info.Mode().IsRegular() ||
		s.builder != nil && (owner(info) == s.builder.UID || builders.Reserved(owner(info))) {
		return fmt.Errorf("%s is a link to %s, which is no interpreter of the node", rel, target)
	}
	if err = unix.Unlinkat(fd, name, 0); err == nil {
		err = unix.Symlinkat(python, fd, name)
	}
	if err != nil {
		return &os.PathError{Op: "seal", Path: rel, Err: err}
	}
	return nil
}
