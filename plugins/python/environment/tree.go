package environment

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// tree is what a directory looks like without reading its files.
type tree struct {
	// Digest is over name, mode, owner, size, inode, times and link target of all that is in it. The ctime is
	// what nobody can set, so that whoever has changed a file cannot hide it.
	Digest string `json:"digest"`
	Files  int    `json:"files"`
	Size   int64  `json:"size"` // bytes on the disk
}

// measure looks at a directory. It follows no links.
func measure(dir string) (tree, error) {
	w := walker{free: make(chan struct{}, min(4, runtime.GOMAXPROCS(0))-1)} // each may take a thread, which stays
	fd, err := openDir(unix.AT_FDCWD, dir)
	if err != nil {
		return tree{}, fmt.Errorf("failed to look at %s: %w", dir, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return tree{}, fmt.Errorf("failed to look at %s: %w", dir, err)
	}
	b := w.directory(fd, 0)
	if b.err != nil {
		return tree{}, fmt.Errorf("failed to look at %s: %w", dir, b.err)
	}
	h := sha256.New()
	h.Write(appendStat(nil, &st))
	h.Write(b.sum[:])
	return tree{hex.EncodeToString(h.Sum(nil)), b.files, b.size + st.Blocks*512}, nil
}

// maxDepth bounds the descriptors and the stack that a malicious tree takes.
const maxDepth = 100

var errTooDeep = fmt.Errorf("directories are nested more than %d deep", maxDepth)

// walker looks at a few directories at a time.
type walker struct{ free chan struct{} }

type branch struct {
	sum   [sha256.Size]byte
	files int
	size  int64
	err   error
}

// directory closes fd.
func (w *walker) directory(fd, depth int) (b branch) {
	defer unix.Close(fd)
	if depth > maxDepth {
		b.err = errTooDeep
		return b
	}
	names, err := readNames(fd)
	if err != nil {
		b.err = err
		return b
	}
	slices.Sort(names)
	type child struct {
		at     int // where its sum belongs in record
		branch branch
	}
	var children []*child
	var others sync.WaitGroup
	record := make([]byte, 0, 128*len(names))
	var st unix.Stat_t
	for _, name := range names {
		if b.err = fstatat(fd, name, &st); b.err != nil {
			break
		}
		b.files++
		b.size += st.Blocks * 512
		record = append(append(record, name...), 0)
		record = appendStat(record, &st)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			target, err := readLink(fd, name)
			if err != nil {
				b.err = err
			}
			record = append(append(record, target...), 0)
		case unix.S_IFDIR:
			sub, err := openDir(fd, name)
			if err != nil {
				b.err = err
				break
			}
			c := &child{at: len(record)}
			children = append(children, c)
			record = append(record, make([]byte, sha256.Size)...)
			select {
			case w.free <- struct{}{}:
				others.Go(func() {
					c.branch = w.directory(sub, depth+1)
					<-w.free
				})
			default:
				c.branch = w.directory(sub, depth+1)
			}
		}
		if b.err != nil {
			break
		}
	}
	others.Wait()
	for _, c := range children {
		copy(record[c.at:], c.branch.sum[:])
		b.files += c.branch.files
		b.size += c.branch.size
		b.err = errors.Join(b.err, c.branch.err)
	}
	b.sum = sha256.Sum256(record)
	return b
}

func appendStat(to []byte, st *unix.Stat_t) []byte {
	for _, v := range []uint64{
		uint64(st.Mode), uint64(st.Uid)<<32 | uint64(st.Gid), uint64(st.Size), st.Ino,
		uint64(st.Mtim.Sec), uint64(st.Mtim.Nsec), uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec),
	} {
		to = binary.LittleEndian.AppendUint64(to, v)
	}
	return to
}

func openDir(at int, name string) (fd int, err error) {
	err = retry(func() error {
		fd, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

func fstatat(fd int, name string, st *unix.Stat_t) error {
	return retry(func() error { return unix.Fstatat(fd, name, st, unix.AT_SYMLINK_NOFOLLOW) })
}

func readLink(fd int, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func readNames(fd int) ([]string, error) {
	var names []string
	buf := make([]byte, 32<<10)
	for {
		var n int
		err := retry(func() (err error) { n, err = unix.ReadDirent(fd, buf); return err })
		if err != nil || n == 0 {
			return names, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// retry is for calls that a signal may interrupt.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}
