// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
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

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// sources are the origins of an environment's packages. The exported fields are part of the environment's key.
type sources struct {
	Indexes requirement.Sources // the sources of the node and the job, except the job's directories

	// Wheels has one digest for the wheels of each of the job's directories. It is empty if the requirements have hashes,
	// with which uv checks the wheels.
	Wheels []string

	wheelhouses []wheelhouse // the job's directories
	netrc       []byte       // the task's netrc file, may be empty
	limit       int64        // the maximum size of all of the job's wheels together, in bytes
}

// wheelhouse is a directory of a task with wheels. The wheels are copied for uv, which cannot access the directory.
type wheelhouse struct {
	name, path string
	files      taskFiles
}

// newSources joins the sources that the node, the job and the job's requirements name.
func newSources(
	ctx context.Context, c *Config, t *TaskConfig, files taskFiles, required *requirement.Set,
) (*sources, error) {
	if !c.JobIndexes && required.Names {
		return nil, requirement.ErrJobIndexes
	}
	node := requirement.Sources{URL: c.IndexURL, Extra: c.ExtraIndexURLs, FindLinks: c.FindLinks, Offline: c.Offline}
	job := requirement.Sources{URL: t.IndexURL, Extra: t.ExtraIndexURLs, FindLinks: t.FindLinks, Offline: t.Offline}
	indexes, directories, err := requirement.Resolve(node, job, required.Indexes, c.JobIndexes)
	if err != nil {
		return nil, err
	}
	s := &sources{Indexes: indexes, limit: cmp.Or(c.CacheMaxSize.Bytes(), math.MaxInt64)}
	if s.netrc, err = readNetrc(files); err != nil {
		return nil, err
	}
	left := s.limit
	for _, name := range directories {
		path, _, err := files.find(name)
		if err != nil {
			return nil, fmt.Errorf("failed to find a directory of find_links: %w", err)
		}
		h := wheelhouse{name: name, path: path, files: files}
		s.wheelhouses = append(s.wheelhouses, h)
		if required.Hashed {
			continue
		}
		sum, err := h.copy(ctx, nil, "", &left)
		if err != nil {
			return nil, err
		}
		s.Wheels = append(s.Wheels, sum)
	}
	return s, nil
}

// readNetrc reads the credentials in a task's secrets directory, with the rights of the task's user. It returns nil if
// the task has none.
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

// into copies the job's wheels into the build's scratch directory, and returns the sources with the directories of the
// copies. The scratch directory may belong to another user, so links that lead out of it are not followed.
func (s *sources) into(ctx context.Context, scratch string) (requirement.Sources, error) {
	indexes := s.Indexes
	indexes.FindLinks = slices.Clone(indexes.FindLinks)
	root, err := os.OpenRoot(scratch)
	if err != nil {
		return indexes, err
	}
	defer root.Close()
	left := s.limit
	for i, h := range s.wheelhouses {
		dir := fmt.Sprintf("wheels-%d", i)
		err := cmp.Or(root.Mkdir(dir, 0o755), root.Chmod(dir, 0o755)) // regardless of the umask
		if err != nil {
			return indexes, fmt.Errorf("failed to make a directory for wheels: %w", err)
		}
		sum, err := h.copy(ctx, root, dir, &left)
		if err != nil {
			return indexes, err
		}
		if i < len(s.Wheels) && sum != s.Wheels[i] {
			return indexes, fmt.Errorf("the directory %q in find_links changed while the task started", h.name)
		}
		indexes.FindLinks = append(indexes.FindLinks, filepath.Join(scratch, dir))
	}
	return indexes, nil
}

// copy reads the wheels with the rights of the task's user, and returns a digest of their names and content. If root is
// not nil, it copies them to dir below root. It subtracts their size from *left, and fails if that reaches zero.
func (h *wheelhouse) copy(ctx context.Context, root *os.Root, dir string, left *int64) (sum string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("failed to read find_links %q: %w", h.name, err)
		}
	}()
	var entries []os.DirEntry
	err = asUser(h.files.user, func() (err error) { entries, err = os.ReadDir(h.path); return err })
	if err != nil {
		return "", err
	}
	all := sha256.New()
	for _, e := range entries {
		if !requirement.IsWheel(e.Name()) {
			continue
		}
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		content := sha256.New()
		size, err := h.copyWheel(e.Name(), root, filepath.Join(dir, e.Name()), content, *left)
		if err != nil {
			return "", err
		}
		*left -= size
		if *left <= 0 {
			return "", errors.New("the job's wheels are larger than this node's limit for an environment (cache_max_size)")
		}
		fmt.Fprintf(all, "%q %x\n", e.Name(), content.Sum(nil))
	}
	return hex.EncodeToString(all.Sum(nil)), nil
}

// copyWheel copies at most limit bytes of a wheel to sum and, if root is not nil, to the path target below root.
func (h *wheelhouse) copyWheel(
	name string, root *os.Root, target string, sum io.Writer, limit int64,
) (size int64, err error) {
	var in *os.File
	err = asUser(h.files.user, func() (err error) { in, err = openRegular(filepath.Join(h.path, name)); return err })
	if err != nil {
		return 0, err
	}
	defer in.Close()
	from := io.LimitReader(in, limit)
	if root == nil {
		return io.Copy(sum, from)
	}
	out, err := root.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	if err := out.Chmod(0o644); err != nil { // regardless of the umask
		return 0, err
	}
	size, err = io.Copy(io.MultiWriter(out, sum), from)
	if err != nil {
		return size, err
	}
	return size, out.Close()
}
