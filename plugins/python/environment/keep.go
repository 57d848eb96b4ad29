package environment

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// kept is what installers downloaded for one build after the other: downloads/<n>. It is the builder's while that
// one builds, and ours in between. Its record, downloads/<n>.digest, says what it looks like then, and is not there during
// a build: what was changed, or left by a build that was killed, serves no other.
type kept struct {
	store *store // of the build
	name  string
	lock  *lock
}

const digestSuffix = ".digest"

func (k *kept) recordPath() string { return k.store.path(k.name + digestSuffix) }

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
		if err := s.trash(nil, s.path(k.name)); err != nil {
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
	_, err := s.reown(s.path(k.name), uint32(os.Geteuid()), s.builder)
	return err
}

// unusable compares what is there with what was kept.
func (k *kept) unusable() error {
	now, err := measure(k.store.path(k.name))
	if err != nil {
		return err
	}
	content, err := os.ReadFile(k.recordPath())
	if err != nil {
		return errors.New("its build did not end")
	}
	if string(content) != now.Digest {
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
	if err := s.trash(nil, s.path(k.name)); err != nil {
		s.log("failed to remove what was downloaded, the next build will: %v", err)
	}
}

func (k *kept) keep() error {
	s := k.store
	t, err := s.reown(s.path(k.name), s.builtBy(), nil)
	if err != nil {
		return err
	}
	return writeFile(k.recordPath(), []byte(t.Digest))
}

// handover makes a tree of one user another's, or ours. The top is the other's last.
type handover struct {
	from     uint32
	uid, gid int
}

// reown walks through a tree, to is nil where it is to be ours.
func (s *store) reown(dir string, from uint32, to *Builder) (tree, error) {
	h := handover{from, os.Geteuid(), os.Getegid()}
	if to != nil {
		h.uid, h.gid = int(to.UID), int(to.GID)
	}
	b := walk(dir, h)
	return b.tree(), b.err
}

func (h handover) enter(fd int, rel string, st *unix.Stat_t) error {
	return takeOver(fd, rel, st, h.from)
}

func (h handover) leave(fd int, rel string) error {
	return changing(rel, unix.Fchown(fd, h.uid, h.gid))
}

func (h handover) entry(dir int, name, rel string, st *unix.Stat_t) error {
	if err := checkOwner(rel, st, h.from); err != nil {
		return err
	}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		err = unix.Fchmodat(dir, name, st.Mode&0o755, 0)
	case unix.S_IFLNK:
	default:
		return fmt.Errorf("%s is neither a file, a directory nor a link", rel)
	}
	if err == nil {
		err = unix.Fchownat(dir, name, h.uid, h.gid, unix.AT_SYMLINK_NOFOLLOW)
	}
	return changing(rel, err)
}
