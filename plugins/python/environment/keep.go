package environment

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// kept is what installers downloaded for one build after the other: downloads/<n>. It is the builder's while that
// one builds, and ours in between. Its record, downloads/<n>.json, says what it looks like then, and is not there during
// a build: what was changed, or left by a build that was killed, serves no other.
type kept struct {
	store *store // of the build
	name  string
	lock  *lock
}

// record is in downloads/<n>.json.
type record struct {
	Digest string `json:"digest"` // of tree
}

func (k *kept) recordPath() string { return k.store.path(k.name + entrySuffix) }

// takeKept gives the builder the first that no other build has.
func (s *store) takeKept() (*kept, error) {
	for n := 0; ; n++ {
		k := &kept{store: s, name: filepath.Join("downloads", strconv.Itoa(n))}
		var err error
		if k.lock, err = s.tryLock(k.name, exclusive); err != nil {
			return nil, err
		}
		if k.lock == nil {
			continue
		}
		if err := k.hand(); err != nil {
			k.lock.close()
			return nil, fmt.Errorf("failed to give the builder what was downloaded: %w", err)
		}
		return k, nil
	}
}

func (k *kept) hand() error {
	s := k.store
	if why := k.unusable(); why != nil {
		if !errors.Is(why, fs.ErrNotExist) {
			s.log("what was downloaded is not used any more: %v", why)
		}
		if err := s.moveAway(s.path(k.name)); err != nil {
			return err
		}
	}
	if err := ignoreMissing(os.Remove(k.recordPath())); err != nil {
		return err
	}
	if err := s.subdirectory(k.name, 0o700); err != nil {
		return err
	}
	if s.builder == nil {
		return nil
	}
	return s.reown(s.path(k.name), uint32(os.Geteuid()), s.builder)
}

// unusable compares what is there with what was kept.
func (k *kept) unusable() error {
	var r record
	now, err := measure(k.store.path(k.name))
	if err != nil {
		return err
	}
	content, err := os.ReadFile(k.recordPath())
	if err != nil || json.Unmarshal(content, &r) != nil {
		return errors.New("its build did not end")
	}
	if r.Digest != now.Digest {
		return errors.New("files were changed")
	}
	return nil
}

// giveBack ends what takeKept began; keep says that nothing can change it any more.
func (k *kept) giveBack(keep bool) {
	s := k.store
	defer k.lock.close()
	err := errors.New("its builder still runs")
	if keep {
		if err = k.keep(); err == nil {
			return
		}
	}
	s.log("what was downloaded is not kept: %v", err)
	if err := s.moveAway(s.path(k.name)); err != nil {
		s.log("failed to remove what was downloaded, the next build will: %v", err)
	}
}

func (k *kept) keep() error {
	s := k.store
	if s.builder != nil {
		if err := s.reown(s.path(k.name), s.builder.UID, nil); err != nil {
			return err
		}
	}
	t, err := measure(s.path(k.name))
	if err != nil {
		return err
	}
	content, err := json.Marshal(record{t.Digest})
	if err != nil {
		return err
	}
	return writeFile(k.recordPath(), content)
}

// moveAway has a tree out of the way at once, and removes it.
func (s *store) moveAway(tree string) error {
	to := s.trashPath()
	if err := os.Rename(tree, to); err != nil {
		return ignoreMissing(err)
	}
	s.removeTree(to)
	return nil
}

// reown makes a tree that is a user's another's, or ours where to is nil. As in seal, each directory is ours before it is
// read, and is reached from its parent's descriptor; the top is the other's last.
func (s *store) reown(tree string, from uint32, to *Builder) error {
	fd, err := openDir(unix.AT_FDCWD, tree)
	if err != nil {
		return &os.PathError{Op: "open", Path: tree, Err: err}
	}
	uid, gid := os.Geteuid(), os.Getegid()
	if to != nil {
		uid, gid = int(to.UID), int(to.GID)
	}
	return reownDir(fd, "", from, uid, gid, 0)
}

// reownDir closes fd. rel is its path in the tree, for errors.
func reownDir(fd int, rel string, from uint32, uid, gid, depth int) error {
	defer unix.Close(fd)
	if depth > maxDepth {
		return errTooDeep
	}
	fail := func(name string, err error) error {
		return &os.PathError{Op: "change the owner of", Path: path.Join(rel, name), Err: err}
	}
	mine := func(name string, st *unix.Stat_t) error {
		if st.Uid != from {
			return fmt.Errorf("%s belongs to user %d instead of %d", path.Join(".", rel, name), st.Uid, from)
		}
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fail("", err)
	}
	if err := mine("", &st); err != nil {
		return err
	}
	if err := unix.Fchown(fd, os.Geteuid(), os.Getegid()); err != nil {
		return fail("", err)
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
		if err := mine(name, &st); err != nil {
			return err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			sub, err := openDir(fd, name)
			if err != nil {
				return fail(name, err)
			}
			if err := reownDir(sub, path.Join(rel, name), from, uid, gid, depth+1); err != nil {
				return err
			}
			continue
		case unix.S_IFREG:
			if err := unix.Fchmodat(fd, name, st.Mode&0o755, 0); err != nil {
				return fail(name, err)
			}
		case unix.S_IFLNK:
		default:
			return fmt.Errorf("%s is neither a file, a directory nor a link", path.Join(rel, name))
		}
		if err := unix.Fchownat(fd, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fail(name, err)
		}
	}
	if err := unix.Fchown(fd, uid, gid); err != nil {
		return fail("", err)
	}
	return nil
}
