// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/plugins/python/index"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// sources is where the packages of an environment come from.
type sources struct {
	indexes index.Sources // of the node and the job; directories of the node only
	houses  []wheelhouse  // the job's own directories
	netrc   []byte        // of the task, may be empty
}

// wheelhouse is a directory of a task with wheels. They are copied for the installer, which has no access to the
// directory, and a wheel that changed since newWheelhouse is an error. If the requirements have hashes, the installer
// checks the wheels itself: then they are read only when an environment is built.
type wheelhouse struct {
	name  string
	path  string
	files taskFiles
	wheel []wheelFile
}

type wheelFile struct {
	name string
	sum  string // "" where it was not read
	size int64
}

// newSources joins the sources that the node, the job and the job's requirements name.
func newSources(
	ctx context.Context, c *Config, t *TaskConfig, files taskFiles, required *requirement.Set,
) (*sources, error) {
	if !c.JobIndexes && required.Names {
		return nil, index.ErrJobIndexes
	}
	indexes, directories, err := index.Resolve(c.sources(), t.sources(), required.Indexes, c.JobIndexes)
	if err != nil {
		return nil, err
	}
	s := &sources{indexes: indexes}
	if s.netrc, err = readNetrc(files); err != nil {
		return nil, err
	}
	left := c.CacheMaxSize.Bytes() // no environment may be larger
	if left <= 0 {
		left = math.MaxInt64 - 1
	}
	for _, name := range directories {
		h, err := newWheelhouse(ctx, name, files, left, !required.Hashed)
		if err != nil {
			return nil, err
		}
		for _, w := range h.wheel {
			left -= w.size
		}
		s.houses = append(s.houses, h)
	}
	if indexes.Offline && len(s.houses) == 0 && len(indexes.FindLinks) == 0 {
		return nil, errors.New("packages can come from nowhere: offline is set, and find_links is not")
	}
	return s, nil
}

func (c *Config) sources() index.Sources {
	return index.Sources{URL: c.IndexURL, Extra: c.ExtraIndexURLs, FindLinks: c.FindLinks, Offline: c.Offline}
}

func (t *TaskConfig) sources() index.Sources {
	return index.Sources{URL: t.IndexURL, Extra: t.ExtraIndexURLs, FindLinks: t.FindLinks, Offline: t.Offline}
}

// readNetrc reads the credentials in a task's secrets directory, with the rights of its user; there may be none.
func readNetrc(files taskFiles) ([]byte, error) {
	if files.secrets == "" {
		return nil, nil
	}
	content, err := files.read(filepath.Join(files.secrets, ".netrc"), 64<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to read the credentials for package indexes in secrets/.netrc: %w", err)
	}
	return content, nil
}

// describe lists the sources for the key of an environment. The content of directories matters only if the
// requirements have no hashes.
func (s *sources) describe(hashed bool) []string {
	list := []string{"offline " + fmt.Sprint(s.indexes.Offline)}
	if s.indexes.URL != "" {
		list = append(list, "index "+s.indexes.URL)
	}
	for _, e := range s.indexes.Extra {
		list = append(list, "extra "+e)
	}
	for _, f := range s.indexes.FindLinks {
		list = append(list, "links "+f)
		if !index.IsURL(f) && !hashed {
			list = append(list, nodeDirectory(f)...)
		}
	}
	if !hashed {
		for _, h := range s.houses {
			for _, w := range h.wheel {
				list = append(list, fmt.Sprintf("wheel %q %s", w.name, w.sum))
			}
		}
	}
	return list
}

// nodeDirectory lists a directory of the operator by names, sizes and times. It may be large, so that its files are not
// read.
func nodeDirectory(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return []string{"unreadable " + dir} // the installer reports it
	}
	var list []string
	for _, e := range entries {
		if !requirement.IsWheel(e.Name()) {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil { // of what a link leads to
			list = append(list, fmt.Sprintf("file %q %d %d", e.Name(), info.Size(), info.ModTime().UnixNano()))
		}
	}
	return list
}

// newWheelhouse describes a directory whose packages have at most limit bytes together. With read it has their
// checksums.
func newWheelhouse(ctx context.Context, name string, files taskFiles, limit int64, read bool) (wheelhouse, error) {
	path, info, err := files.find(name)
	if err != nil {
		return wheelhouse{}, fmt.Errorf("find_links %w", err)
	}
	if !info.IsDir() {
		return wheelhouse{}, fmt.Errorf("find_links %q is not a directory: name the one that the wheels are in", name)
	}
	h := wheelhouse{name: name, path: path, files: files}
	err = asUser(files.user, func() error {
		entries, err := os.ReadDir(path)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !requirement.IsWheel(e.Name()) {
				continue
			}
			w, err := lookAtWheel(ctx, path, e.Name(), limit, read)
			if err != nil {
				return err
			}
			if limit -= w.size; limit < 0 {
				return errors.New("its packages are larger than an environment may be on this node (cache_max_size)")
			}
			h.wheel = append(h.wheel, w)
		}
		return nil
	})
	if err != nil {
		return wheelhouse{}, fmt.Errorf("failed to read find_links %q: %w", name, err)
	}
	return h, nil
}

// lookAtWheel describes a wheel. It opens the file even if it is not to be read, so that a wheel without read
// permission is an error at once. A returned size above limit is not exact.
func lookAtWheel(ctx context.Context, dir, name string, limit int64, read bool) (wheelFile, error) {
	f, err := openRegular(filepath.Join(dir, name), 0)
	if err != nil {
		return wheelFile{}, err
	}
	defer f.Close()
	if !read {
		info, err := f.Stat()
		if err != nil {
			return wheelFile{}, err
		}
		return wheelFile{name: name, size: info.Size()}, nil
	}
	sum := sha256.New()
	size, err := io.Copy(sum, untilEnd{ctx, io.LimitReader(f, limit+1)})
	return wheelFile{name, hex.EncodeToString(sum.Sum(nil)), size}, err
}

// untilEnd reads until a context ends.
type untilEnd struct {
	ctx context.Context
	io.Reader
}

func (r untilEnd) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// into copies the job's wheels into the build's scratch directory, and returns the sources as the installer sees them.
// The directory may be another user's, so that no link in it is followed out of it.
func (s *sources) into(ctx context.Context, scratch string) (index.Sources, error) {
	indexes := s.indexes
	indexes.FindLinks = slices.Clone(indexes.FindLinks)
	if len(s.houses) == 0 {
		return indexes, nil
	}
	root, err := os.OpenRoot(scratch)
	if err != nil {
		return indexes, err
	}
	defer root.Close()
	for i, h := range s.houses {
		dir := fmt.Sprintf("wheels-%d", i)
		if err := root.Mkdir(dir, 0o755); err != nil {
			return indexes, err
		}
		if err := root.Chmod(dir, 0o755); err != nil { // whatever the umask is
			return indexes, err
		}
		for _, w := range h.wheel {
			if err := h.copy(ctx, w, root, filepath.Join(dir, w.name)); err != nil {
				return indexes, fmt.Errorf("failed to copy %s of find_links %q: %w", w.name, h.name, err)
			}
		}
		indexes.FindLinks = append(indexes.FindLinks, filepath.Join(scratch, dir))
	}
	return indexes, nil
}

func (h wheelhouse) copy(ctx context.Context, w wheelFile, root *os.Root, target string) error {
	out, err := root.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := out.Chmod(0o644); err != nil { // whatever the umask is
		return err
	}
	var in *os.File
	err = asUser(h.files.user, func() error {
		in, err = openRegular(filepath.Join(h.path, w.name), 0)
		return err
	})
	if err != nil {
		return err
	}
	defer in.Close()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(out, sum), untilEnd{ctx, io.LimitReader(in, w.size)}); err != nil {
		return err
	}
	if w.sum != "" && hex.EncodeToString(sum.Sum(nil)) != w.sum {
		return errors.New("it has changed meanwhile")
	}
	return out.Close()
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
