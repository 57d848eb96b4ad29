package install_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

const link = 0o120777 // S_IFLNK

func TestAWheelThatReachesOutOfTheEnvironmentChangesNothingOutside(t *testing.T) {
	outside := filepath.Join(os.TempDir(), "install-test-outside")
	tests := []struct {
		name  string
		files map[string]string
		modes map[string]uint32
		made  bool // the tools may make an environment without the offending part
	}{
		{name: "a relative path upwards", files: map[string]string{"../../../../outside.py": "x"}},
		{name: "a relative path within", files: map[string]string{"evil/../../../../../outside.py": "x"}},
		{name: "an absolute path", files: map[string]string{outside: "x"}, made: true},
		{name: "data over the settings", files: map[string]string{"evil-1.0.data/data/pyvenv.cfg": "home = /tmp\n"}},
		{name: "data over the interpreter", files: map[string]string{"evil-1.0.data/data/bin/python": "#!/bin/sh\n"}},
		{name: "a script in the interpreter's place", files: map[string]string{"evil-1.0.data/scripts/python": "#!/bin/sh\n"}},
		{name: "a script upwards", files: map[string]string{"evil-1.0.data/scripts/../../../outside.py": "x"}, made: true},
		{name: "a link to a file outside", files: map[string]string{"evil_link.py": "/etc/passwd"}, modes: map[string]uint32{"evil_link.py": link}, made: true},
		{name: "a link to a directory outside and a file in it", files: map[string]string{"out": os.TempDir(), "out/install-test-outside": "x"},
			modes: map[string]uint32{"out": link}},
		{name: "an entry point upwards", files: map[string]string{"evil-1.0.dist-info/entry_points.txt": "[console_scripts]\n../../outside = evil:main\n"}, made: true},
		{name: "an entry point over the interpreter", files: map[string]string{"evil-1.0.dist-info/entry_points.txt": "[console_scripts]\npython = evil:main\n"}},
		{name: "headers upwards", files: map[string]string{"evil-1.0.data/headers/../../../../../../outside.h": "x"}},
		{name: "a program with its owner's rights", files: map[string]string{"evil-1.0.data/scripts/root": "#!/bin/sh\n"},
			modes: map[string]uint32{"evil-1.0.data/scripts/root": 0o104755}, made: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tools(t, func(t *testing.T, i install.Installer) {
				p := newPlace(t)
				wheeltest.Wheel{Name: "evil", Version: "1.0", Files: test.files, Modes: test.modes}.Write(t, p.wheels)
				before := list(t, p)
				_, err := i.Install(t.Context(), p.request(t, "evil"))
				t.Logf("the error: %v\n%s", err, lines(err))
				var e *install.Error
				if errors.As(err, &e) {
					if e.Cause != install.Malicious && e.Cause != install.Unknown {
						t.Errorf("the cause is %v: %v", e.Cause, e.Lines)
					}
				} else if !test.made || err != nil {
					t.Errorf("it was installed, or failed otherwise: %v", err)
				} else if found := dangers(t, p); len(found) > 0 {
					t.Errorf("it was installed with %q", found)
				}
				if after := list(t, p); !slices.Equal(before, after) {
					t.Errorf("outside of the environment there was %q and is %q", before, after)
				}
				if _, err := os.Lstat(outside); err == nil {
					t.Errorf("%s was made", outside)
					os.Remove(outside)
				}
			})
		})
	}
}

// dangers are what is in a new environment though it must not be, but for the links to its interpreter.
func dangers(t *testing.T, p place) (found []string) {
	t.Helper()
	err := filepath.WalkDir(p.env(), func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		what := ""
		switch mode := info.Mode(); {
		case mode&os.ModeSymlink != 0:
			to, err := filepath.EvalSymlinks(name)
			if err != nil || to != system(t).Real && !strings.HasPrefix(to, p.env()+"/") {
				what = fmt.Sprintf("a link to %s", to)
			}
		case mode&(os.ModeSetuid|os.ModeSetgid) != 0 || !mode.IsDir() && !mode.IsRegular():
			what = mode.String()
		case mode.IsRegular() && info.Sys().(*syscall.Stat_t).Nlink > 1:
			what = "a hard link"
		}
		if what != "" {
			found = append(found, what+" at "+name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Code of a package may write to the new environment, and does there what no tool does with a wheel. What is
// looked at afterwards is the same with any tool.
func TestAPackagesBuildThatPutsDangersIntoTheEnvironmentIsRefused(t *testing.T) {
	for name, code := range map[string]string{
		"a link to a file outside":          "os.symlink('/etc/passwd', ENV + '/lib/evil.py')",
		"a link to a directory outside":     "os.symlink('../../..', ENV + '/lib/evil')",
		"a program with its owner's rights": "open(ENV + '/bin/evil', 'w').close(); os.chmod(ENV + '/bin/evil', 0o4755)",
		"a program with its group's rights": "open(ENV + '/bin/evil', 'w').close(); os.chmod(ENV + '/bin/evil', 0o2755)",
		"a hard link":                       "open(ENV + '/evil', 'w').close(); os.link(ENV + '/evil', ENV + '/lib/evil')",
		"a pipe":                            "os.mkfifo(ENV + '/evil')",
		"another interpreter":               "os.unlink(ENV + '/bin/python3'); os.symlink('/bin/sh', ENV + '/bin/python3')",
		"settings that are moved":           "os.rename(ENV + '/pyvenv.cfg', ENV + '/lib/pyvenv.cfg')",
		"more settings":                     "open(ENV + '/pyvenv.cfg', 'a').write('home = /tmp')",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pipAlone(t, func(t *testing.T, i install.Installer) {
				p := newPlace(t)
				wheeltest.Sdist{Name: "evil", Version: "1.0", Code: "import os; ENV = " + quoted(p.env()) + "; " + code}.Write(t, p.wheels)
				r := p.request(t, "evil")
				r.AllowSdists = true
				_, err := i.Install(t.Context(), r)
				var e *install.Error
				if !errors.As(err, &e) || e.Cause != install.Malicious {
					t.Errorf("the error is %v\n%s", err, lines(err))
				}
				t.Log(err)
			})
		})
	}
}

// list is what is beside an environment, but for the installer's own files.
func list(t *testing.T, p place) (names []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Dir(p.dir), func(name string, d os.DirEntry, err error) error {
		switch name {
		case p.env(), p.work(), p.downloads():
			return filepath.SkipDir
		}
		names = append(names, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestAWheelsStartupFileDoesNotRunDuringTheBuild(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		marker := filepath.Join(p.downloads(), "ran")
		wheeltest.Wheel{Name: "evil", Version: "1.0", Files: map[string]string{
			"evil.pth":         "import os; os.system('id > " + marker + "')\n",
			"sitecustomize.py": "import os; os.system('id > " + marker + "')\n",
			"compileall.py":    "import os; os.system('id > " + marker + "')\n",
		}}.Write(t, p.wheels)
		if _, err := i.Install(t.Context(), p.request(t, "evil")); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(marker); err == nil {
			t.Errorf("it ran as %s", text)
		}
	})
}

func TestASourceDistributionRunsOnlyWhereItMay(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		marker := filepath.Join(p.work(), "ran")
		wheeltest.Sdist{Name: "source", Version: "1.0", Code: "import os; open(" + quoted(marker) + ", 'w').write(str(os.getresuid()) + str(os.getgroups()))"}.Write(t, p.wheels)

		r := p.request(t, "source")
		_, err := i.Install(t.Context(), r)
		var e *install.Error
		if !errors.As(err, &e) || e.Temporary() || !strings.Contains(err.Error(), "from wheels alone (allow_sdists)") {
			t.Errorf("where it may not, the error is %v\n%s", err, lines(err))
		}
		if text, err := os.ReadFile(marker); err == nil {
			t.Errorf("where it may not it ran as %s", text)
		}

		p = newPlace(t)
		marker = filepath.Join(p.work(), "ran")
		wheeltest.Sdist{Name: "source", Version: "1.0", Code: "import os; open(" + quoted(marker) + ", 'w').write(str(os.getresuid()) + str(os.getgroups()))"}.Write(t, p.wheels)
		r = p.request(t, "source")
		r.AllowSdists = true
		result, err := i.Install(t.Context(), r)
		if err != nil {
			t.Fatalf("%v\n%s", err, lines(err))
		}
		if want := []string{"source 1.0"}; !slices.Equal(result.Packages, want) {
			t.Errorf("installed %q", result.Packages)
		}
		text, err := os.ReadFile(marker)
		if as := builder(); err != nil || as != nil && string(text) != fmt.Sprintf("(%[1]d, %[1]d, %[1]d)[]", as.Uid) {
			t.Errorf("it ran as %s: %v", text, err)
		}
		if kept, err := os.ReadDir(p.downloads()); err != nil || len(kept) > 0 {
			t.Errorf("it left %v for later builds: %v", kept, err)
		}
	})
}

func quoted(s string) string { return "'" + s + "'" }

func TestAFileOfAPackageIsBounded(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		wheeltest.Wheel{Name: "bomb", Version: "1.0", Files: map[string]string{"bomb.bin": strings.Repeat("0", 64<<20)}}.Write(t, p.wheels)
		r := p.request(t, "bomb")
		r.MaxSize = 16 << 20
		_, err := i.Install(t.Context(), r)
		var e *install.Error
		if !errors.As(err, &e) || e.Cause != install.TooLarge {
			t.Errorf("the error is %v\n%s", err, lines(err))
		}
	})
}

func TestNamesWithControlCharactersAreShownClean(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		wheeltest.Wheel{Name: "evil", Version: "1.0", Files: map[string]string{
			"new\nline\x1b[31mred.py": "x", "evil-1.0.data/scripts/python": "\x1b]0;title\a",
		}}.Write(t, p.wheels)
		var heard []string
		r := p.request(t, "evil")
		r.Progress = func(words string) { heard = append(heard, words) }
		_, err := i.Install(t.Context(), r)
		if err == nil {
			t.Error("it was installed")
		} else if strings.ContainsAny(err.Error()+strings.Join(heard, ""), "\n\x1b\a") {
			t.Errorf("not clean: %q %q", err, heard)
		}
	})
}

func TestALockedFileThatIsAnotherIsRefused(t *testing.T) {
	tools(t, func(t *testing.T, i install.Installer) {
		p := newPlace(t)
		sum := wheeltest.Wheel{Name: "locked", Version: "1.0"}.Write(t, p.wheels)
		for _, hash := range []string{sum, strings.Repeat("0", 64)} {
			p2 := newPlace(t)
			r := p2.request(t)
			r.Indexes.FindLinks = []string{p.wheels}
			r.Requirements = &requirement.Set{Lines: []string{"locked==1.0 --hash=sha256:" + hash}, Hashed: true, Complete: true}
			_, err := i.Install(t.Context(), r)
			var e *install.Error
			if hash == sum && err != nil || hash != sum && (!errors.As(err, &e) || e.Temporary() || !strings.Contains(err.Error(), "locked") || !strings.Contains(err.Error(), hash)) {
				t.Errorf("with the hash %s: %v\n%s", hash, err, lines(err))
			}
		}
	})
}
