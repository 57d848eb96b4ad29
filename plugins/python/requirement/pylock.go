// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package requirement

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/outrider-dev/outrider/plugins/python/index"
)

// pylockName is what the specification requires of a file's name.
var pylockName = regexp.MustCompile(`^pylock\.(?:[^.]+\.)?toml$`)

// pylock is a lock file of PyPA's pylock.toml specification (PEP 751), without the fields that an installation does not
// need.
type pylock struct {
	Version        string          `toml:"lock-version"`
	RequiresPython string          `toml:"requires-python"`
	Environments   []string        `toml:"environments"`
	Extras         []string        `toml:"extras"`
	Groups         []string        `toml:"dependency-groups"`
	DefaultGroups  []string        `toml:"default-groups"`
	Packages       []pylockPackage `toml:"packages"`
}

type pylockPackage struct {
	Name           string         `toml:"name"`
	Version        string         `toml:"version"`
	Marker         string         `toml:"marker"`
	RequiresPython string         `toml:"requires-python"`
	Index          string         `toml:"index"`
	VCS            map[string]any `toml:"vcs"`
	Directory      map[string]any `toml:"directory"`
	Archive        *pylockFile    `toml:"archive"`
	Sdist          *pylockFile    `toml:"sdist"`
	Wheels         []pylockFile   `toml:"wheels"`
}

type pylockFile struct {
	URL          string            `toml:"url"`
	Path         string            `toml:"path"`
	Subdirectory string            `toml:"subdirectory"`
	Hashes       map[string]string `toml:"hashes"`
}

// pylockVariables are those of requirements and the lists that the specification adds.
func pylockVariables() map[string]string {
	all := maps.Clone(requirementVariables)
	all["extras"], all["dependency_groups"] = "", ""
	return all
}

// readPylock makes a Set of a lock. A lock may be for several environments: markers select the packages, as in a
// requirements file.
func (c Choice) readPylock(name string, read Reader) (*Set, error) {
	var lock pylock
	if err := decode("lock", name, read, &lock); err != nil {
		return nil, err
	}
	if lock.Version == "" {
		return nil, fmt.Errorf("%s has no lock-version: it is not a pylock.toml (PEP 751)", name)
	}
	if lock.Version != "1" && !strings.HasPrefix(lock.Version, "1.") {
		return nil, fmt.Errorf("%s has lock-version %s, and only 1 is understood: export it again as 1.0", name,
			show(lock.Version))
	}
	if lock.Packages == nil {
		return nil, fmt.Errorf("%s has no packages", name)
	}
	c, err := c.of(name, lock.Extras, lock.Groups)
	if err != nil {
		return nil, err
	}
	for _, g := range lock.DefaultGroups {
		c.Groups = append(c.Groups, ProjectName(g))
	}
	s := &Set{Hashed: true, Complete: true}
	pythons := []string{lock.RequiresPython}
	if err := checkEnvironments(lock.Environments); err != nil {
		return nil, fmt.Errorf("%s: environments: %w", name, err)
	}
	for i, p := range lock.Packages {
		if err := s.addPackage(name, p, c, &pythons); err != nil {
			label := show(p.Name)
			if p.Name == "" {
				label = fmt.Sprint("number ", i+1)
			}
			return nil, fmt.Errorf("%s: package %s: %w", name, label, err)
		}
	}
	s.sort()
	s.RequiresPython = and(pythons...)
	s.Hashed = len(s.Lines) > 0
	return s, nil
}

// checkEnvironments refuses a lock for other systems than Linux, since packages that Linux needs may be missing. Other
// conditions of the markers are not checked; requires-python covers most of them.
func checkEnvironments(markers []string) error {
	fits := len(markers) == 0
	for _, text := range markers {
		m, err := lockMarker(text)
		if err != nil {
			return err
		}
		rest, value := m.decide(onLinux)
		fits = fits || value || rest != nil
	}
	if !fits {
		return errors.New("the lock is not for Linux: lock for Linux, too")
	}
	return nil
}

// onLinux evaluates comparisons that have the same value on each Linux, for decide.
func onLinux(c *marker) (value, ok bool) {
	is := map[string]string{"sys_platform": "linux", "os_name": "posix", "platform_system": "Linux"}
	variable, text := c.operands()
	ours, known := is[variable]
	return (text == ours) == (c.op == "=="), known && (c.op == "==" || c.op == "!=")
}

// addPackage adds a line for a package, unless it is of a group or an extra that is not chosen, and its requires-python
// to pythons. The line is checked like one of a requirements file.
func (s *Set) addPackage(lock string, p pylockPackage, c Choice, pythons *[]string) error {
	if nameText.FindString(p.Name) != p.Name || p.Name == "" {
		return errors.New("its name is not one of a package")
	}
	condition, wanted, err := c.decide(p.Marker)
	if err != nil || !wanted {
		return err
	}
	// that of an old package may be wrong, such as ">=3.6.*"; the installer reads it from the package, too
	if condition == nil && isSpecifier(p.RequiresPython) {
		*pythons = append(*pythons, p.RequiresPython)
	}
	line := p.Name + "==" + p.Version
	files := p.Wheels
	if p.Sdist != nil {
		files = append(slices.Clone(files), *p.Sdist)
	}
	switch {
	case p.VCS != nil:
		return errors.New("it is a repository, which would have to be built on the node: build a wheel of it, and lock that")
	case p.Directory != nil:
		return errors.New("it is a directory, which would have to be built on the node: " +
			"leave it out (uv export --no-emit-project), or lock a wheel of it")
	case p.Archive != nil && p.Archive.URL == "":
		return errors.New("it is an archive of the node: put a wheel into a directory, and lock that with its path")
	case p.Archive != nil:
		files, line = []pylockFile{*p.Archive}, p.Name+" @ "+p.Archive.URL
		if p.Archive.Subdirectory != "" {
			line += "#subdirectory=" + p.Archive.Subdirectory
		}
	case len(files) == 0:
		return errors.New("it has no files: lock it with its wheels")
	}
	if condition != nil {
		line += " ; " + condition.String()
	}
	var options []string // to join once: a package may have thousands of files
	for _, f := range files {
		hashes, err := f.safeHashes()
		if err != nil {
			return err
		}
		for _, h := range hashes {
			options = append(options, " --hash="+h)
		}
		if p.Archive != nil || f.Path == "" {
			continue
		}
		links, err := besideLock(lock, f.Path)
		if err != nil {
			return err
		}
		s.Indexes.FindLinks = each(s.Indexes.FindLinks, []string{links})
	}
	line += strings.Join(options, "")
	if err := checkText(line); err != nil {
		return err
	}
	r, err := parseLine(line)
	if err != nil {
		return err
	}
	if !r.pinned() {
		return fmt.Errorf("its version %s is not one: lock it with its version", show(p.Version))
	}
	s.add(r.hashed())
	return s.addIndex(p.Index)
}

// maxIndexes bounds the indexes of a lock, each of which is asked for each package.
const maxIndexes = 50

// addIndex adds the index that a lock names for a package. PyPI stands for the node's own index, which may be a mirror
// of it.
func (s *Set) addIndex(source string) error {
	if source == "" || strings.TrimSuffix(source, "/") == "https://pypi.org/simple" {
		return nil
	}
	if _, err := index.CheckURL(source); err != nil {
		return fmt.Errorf("its index: %w", err)
	}
	if err := checkText(source); err != nil {
		return err
	}
	if slices.Contains(s.Indexes.Extra, source) {
		return nil
	}
	if s.Indexes.Extra = append(s.Indexes.Extra, source); len(s.Indexes.Extra) > maxIndexes {
		return fmt.Errorf("the lock has more than %d indexes", maxIndexes)
	}
	return nil
}

// safeHashes are those that an installer can verify.
func (f pylockFile) safeHashes() ([]string, error) {
	var list []string
	for algorithm, value := range f.Hashes {
		if digits[strings.ToLower(algorithm)] == 0 {
			continue
		}
		h, err := checkHash(algorithm + ":" + value)
		if err != nil {
			return nil, err
		}
		list = append(list, h)
	}
	if len(list) == 0 {
		return nil, errors.New("a file of it has no hash that is safe: lock it with sha256")
	}
	return sorted(list), nil
}

// besideLock is the directory of a file that a lock names by a path. It must be below the directory of the lock.
func besideLock(lock, file string) (string, error) {
	clean := path.Clean(file)
	if path.IsAbs(clean) || clean == ".." || strings.HasPrefix(clean, "../") || strings.ContainsAny(file, `\:`) {
		return "", fmt.Errorf("its path %s is not below the lock's directory: put the wheels there", show(file))
	}
	if err := checkText(clean); err != nil {
		return "", err
	}
	links := path.Dir(relative(lock, clean))
	if strings.HasPrefix(links, "-") {
		return "", fmt.Errorf("directory %s begins with a hyphen, which installers take for an option: name it otherwise",
			show(links))
	}
	return links, nil
}

// decide evaluates extras and groups in the marker of a package. It returns the rest of the marker, and whether the
// package is to be installed, if the rest holds.
func (c Choice) decide(text string) (rest *marker, wanted bool, err error) {
	if text == "" {
		return nil, true, nil
	}
	m, err := lockMarker(text)
	if err != nil {
		return nil, false, err
	}
	rest, wanted = m.decide(func(m *marker) (value, ok bool) {
		variable, text := m.operands()
		chosen := slices.Contains(c.Extras, ProjectName(text))
		if variable == "dependency_groups" {
			chosen = slices.Contains(c.Groups, ProjectName(text))
		}
		switch variable {
		case "extras", "dependency_groups":
			return chosen == (m.op == "in"), true
		case "extra":
			return chosen == (m.op == "=="), m.op == "==" || m.op == "!="
		}
		return false, false
	})
	return rest, wanted || rest != nil, nil
}

func lockMarker(text string) (*marker, error) {
	if err := checkText(text); err != nil {
		return nil, err
	}
	m, err := parseMarker(text, pylockVariables())
	if err != nil {
		return nil, err
	}
	return m, m.checkLists()
}

// checkLists allows only membership tests of lists.
func (m *marker) checkLists() error {
	variable, _ := m.operands()
	isList := variable == "extras" || variable == "dependency_groups"
	if isList && (variable == m.left || m.op != "in" && m.op != "not in") {
		return errors.New("its marker is wrong: extras and dependency_groups are lists, write 'dev' in dependency_groups")
	}
	for _, part := range m.of {
		if err := part.checkLists(); err != nil {
			return err
		}
	}
	return nil
}
