package install

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// made is what an environment consists of before its packages: its settings, its interpreter's links and its
// programs. No package may change them.
type made map[string]file

type file struct {
	link    string // of a symbolic link
	content []byte // of a regular file
}

// snapshot reads the new environment.
func (b *build) snapshot() (made, error) {
	root, err := os.OpenRoot(b.Dir)
	if err != nil {
		return nil, fmt.Errorf("failed to open the new environment: %w", err)
	}
	defer root.Close()
	m := made{}
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := readEntry(root, name, d.Type())
		m[name] = f
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("failed to read the new environment: %w", err)
	}
	return m, nil
}

func readEntry(root *os.Root, name string, mode fs.FileMode) (f file, err error) {
	switch mode.Type() {
	case fs.ModeSymlink:
		f.link, err = root.Readlink(name)
	case 0:
		f.content, err = root.ReadFile(name)
	}
	return f, err
}

// verify looks at all files of the environment, without following any link, now that nothing
// runs that could change them: whatever a tool let pass is found here.
func (b *build) verify(before made) error {
	root, err := os.OpenRoot(b.Dir)
	if err != nil {
		return fmt.Errorf("failed to open the new environment: %w", err)
	}
	defer root.Close()
	owner := uint32(os.Geteuid())
	if b.As != nil {
		owner = b.As.Uid
	}
	var size int64
	seen := 0
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info() // whoever still runs could deceive it: sealing looks again, by descriptors
		if err != nil {
			return err
		}
		if old, ok := before[name]; ok {
			seen++
			if info.Mode().IsRegular() && info.Size() != int64(len(old.content)) { // which may be too much to read
				return b.malicious("a package changed %q of the environment itself", name)
			}
			if now, err := readEntry(root, name, info.Mode()); err != nil || now.link != old.link || !bytes.Equal(now.content, old.content) {
				return b.malicious("a package changed %q of the environment itself", name)
			}
			return nil
		}
		size += info.Size()
		return b.verifyFile(root, name, info, owner)
	})
	if err == nil {
		err = b.verifyRecords(root)
	}
	var e *Error
	switch {
	case errors.As(err, &e):
		return err
	case err != nil:
		return fmt.Errorf("failed to look through the new environment: %w", err)
	case seen < len(before):
		return b.malicious("a package removed files of the environment itself")
	case b.MaxSize > 0 && size > b.MaxSize:
		return b.tooLarge()
	}
	return nil
}

func (b *build) verifyFile(root *os.Root, name string, info fs.FileInfo, owner uint32) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("failed to see who owns %q", name)
	}
	mode := info.Mode()
	switch {
	case mode&fs.ModeSymlink != 0:
		// A Root follows links as long as they stay in it, and no absolute ones. One to nowhere leads nowhere.
		if _, err := root.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			target, _ := root.Readlink(name)
			return b.malicious("a package has a link out of the environment, %q to %q", name, target)
		}
	case !mode.IsDir() && !mode.IsRegular():
		return b.malicious("a package has a device, pipe or socket, %q", name)
	case mode.IsRegular() && mode&(fs.ModeSetuid|fs.ModeSetgid) != 0:
		return b.malicious("a package has a program with the rights of its owner (setuid), %q", name)
	case mode.IsRegular() && stat.Nlink != 1:
		return b.malicious("a package has a file that is also elsewhere (a hard link), %q", name)
	}
	if stat.Uid != owner {
		return b.malicious("a file is not the builder's, %q", name)
	}
	return nil
}

// maxRecord is more than a package with a million files has.
const maxRecord = 256 << 20

// verifyRecords refuses packages whose lists of files have some outside of the environment (RECORD, of
// the recording installed projects specification): a tool may have left these out without a word.
func (b *build) verifyRecords(root *os.Root) error {
	records, err := fs.Glob(root.FS(), "lib/*/site-packages/*.dist-info/RECORD")
	if err != nil {
		return err
	}
	for _, record := range records {
		f, err := root.Open(record)
		if err != nil {
			return err
		}
		if info, err := f.Stat(); err != nil || info.Size() > maxRecord {
			f.Close()
			return errors.Join(err, b.malicious("%q is larger than any package's list of files", record))
		}
		r := csv.NewReader(f)
		r.FieldsPerRecord, r.ReuseRecord, r.LazyQuotes = -1, true, true
		site := path.Dir(path.Dir(record))
		for {
			var row []string
			if row, err = r.Read(); err != nil {
				break
			}
			if !filepath.IsLocal(path.Join(site, row[0])) || path.IsAbs(row[0]) && !strings.HasPrefix(path.Clean(row[0]), b.Dir+"/") {
				err = b.malicious("%q lists a file outside of the environment, %q", path.Base(path.Dir(record)), row[0])
				break
			}
		}
		f.Close()
		var e *Error
		if errors.As(err, &e) {
			return err
		}
	}
	return nil
}

func (b *build) malicious(format string, args ...any) error {
	return &Error{Cause: Malicious, Tool: b.with.Tool(b.Python), Words: fmt.Sprintf(format, args...)}
}

func (b *build) tooLarge() error {
	return &Error{Cause: TooLarge, Tool: b.with.Tool(b.Python), Words: fmt.Sprintf(
		"the packages take more than the %d MiB that an environment may take on this node", b.MaxSize>>20)}
}

// tooLargeTogether may be another build's fault, and none the next time.
func (b *build) tooLargeTogether() error {
	return &Error{Cause: NoSpace, Tool: b.with.Tool(b.Python), Words: fmt.Sprintf(
		"what is downloaded for this and other environments at the same time takes more than the %d MiB that each may take on this node", b.MaxSize>>20)}
}
