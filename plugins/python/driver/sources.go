package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

// sources is where the packages of an environment come from.
type sources struct {
	indexes requirement.Indexes // of the node and the job; directories of the node only
	houses  []wheelhouse        // the job's own directories
}

// wheelhouse is a directory of a task with wheels. They are copied for the installer,
// which may not see the directory, with what they were when they were looked at. Where the requirements have
// hashes, the installer knows what they have to be: then they are first read when an environment is built.
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

// newSources joins what the node, the job and the job's requirements file say.
func newSources(ctx context.Context, c *Config, t *TaskConfig, files taskFiles, required *requirement.Set) (*sources, error) {
	own := slices.Concat([]string{c.IndexURL}, c.ExtraIndexURLs)
	notOwn := func(index string) bool { return !slices.Contains(own, index) }
	said := meant(required.Indexes, slices.Concat([]string{t.IndexURL}, t.ExtraIndexURLs, own))
	if !c.JobIndexes && (said.URL != "" && notOwn(said.URL) || slices.ContainsFunc(said.Extra, notOwn) || len(required.URLs) > 0 || slices.ContainsFunc(said.FindLinks, isURL)) {
		return nil, errNoJobIndexes
	}
	s := &sources{}
	s.indexes.Offline = c.Offline || t.Offline || said.Offline
	if !s.indexes.Offline {
		switch {
		case t.IndexURL != "":
			s.indexes.URL = t.IndexURL
		case said.URL != "":
			s.indexes.URL = said.URL
		default:
			s.indexes.URL = c.IndexURL
		}
		for _, e := range slices.Concat(t.ExtraIndexURLs, said.Extra) {
			if e != s.indexes.URL && !slices.Contains(s.indexes.Extra, e) {
				s.indexes.Extra = append(s.indexes.Extra, e)
			}
		}
		if s.indexes.URL == c.IndexURL && len(t.ExtraIndexURLs) == 0 && !slices.ContainsFunc(s.indexes.Extra, notOwn) {
			s.indexes.Extra = c.ExtraIndexURLs
		}
	}
	s.indexes.FindLinks = slices.Clone(c.FindLinks)
	left := c.CacheMaxSize.Bytes() // what is larger makes no environment
	if left <= 0 {
		left = math.MaxInt64 - 1
	}
	for _, f := range slices.Concat(t.FindLinks, said.FindLinks) {
		if isURL(f) {
			s.indexes.FindLinks = append(s.indexes.FindLinks, f) // offline is without an index, which no page is
			continue
		}
		h, err := newWheelhouse(ctx, f, files, left, !required.Hashed)
		if err != nil {
			return nil, err
		}
		for _, w := range h.wheel {
			left -= w.size
		}
		s.houses = append(s.houses, h)
	}
	logins, err := readNetrc(files)
	if err != nil {
		return nil, err
	}
	s.indexes.URL = logins.give(s.indexes.URL)
	for _, list := range []*[]string{&s.indexes.Extra, &s.indexes.FindLinks} {
		*list = slices.Clone(*list) // which may be the node's
		for i, text := range *list {
			(*list)[i] = logins.give(text)
		}
	}
	if s.indexes.Offline && len(s.houses) == 0 && len(s.indexes.FindLinks) == 0 {
		return nil, errors.New("packages can come from nowhere: offline is set, and find_links is not")
	}
	return s, nil
}

// meant has the indexes that are known where a lock or a file names the same without credentials, which locks have none of.
func meant(said requirement.Indexes, known []string) requirement.Indexes {
	find := func(index string) string {
		if user, bare := splitIndex(index); user == nil && bare != "" {
			for _, k := range known {
				if _, same := splitIndex(k); same == bare {
					return k
				}
			}
		}
		return index
	}
	said.URL = find(said.URL)
	said.Extra = slices.Clone(said.Extra)
	for i, e := range said.Extra {
		said.Extra[i] = find(e)
	}
	return said
}

// splitIndex has the credentials apart, and no last slash.
func splitIndex(index string) (user *url.Userinfo, bare string) {
	u, err := url.Parse(index)
	if err != nil {
		return nil, index
	}
	user, u.User = u.User, nil
	return user, strings.TrimSuffix(u.String(), "/")
}

// describe is for the key. What is in directories matters only where requirements do
// not have hashes of their own.
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
		if !isURL(f) && !hashed {
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

// nodeDirectory lists a directory that the operator answers for: it may be large, so
// what is in the files is not looked at.
func nodeDirectory(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return []string{"unreadable " + dir} // the installer tells
	}
	var list []string
	for _, e := range entries {
		if !requirement.IsArchive(e.Name()) && !isPage(e.Name()) {
			continue
		}
		if info, err := os.Stat(filepath.Join(dir, e.Name())); err == nil { // of what a link leads to
			list = append(list, fmt.Sprintf("file %q %d %d", e.Name(), info.Size(), info.ModTime().UnixNano()))
		}
	}
	return list
}

// isPage says whether pip follows the links in a file.
func isPage(name string) bool {
	ext := strings.ToLower(filepath.Ext(name))
	return ext == ".html" || ext == ".htm"
}

// newWheelhouse looks at a directory whose packages have at most limit bytes together, and reads them if that is wanted.
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
			if !requirement.IsArchive(e.Name()) {
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

// lookAtWheel opens the file in any case, so that one that can't be read is found at once. A size above limit means only that.
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

// into copies the job's wheels into the build's scratch directory, and returns where
// everything is for the installer. The directory may be another user's: no link in
// it is followed out of it.
func (s *sources) into(ctx context.Context, scratch string) (requirement.Indexes, error) {
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
