package install_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

func TestASourceDistributionByItsURLDoesNotRunWhereItMayNot(t *testing.T) {
	tests := map[string]func(t *testing.T, p place, file, sum string) *requirement.Set{
		"a requirement": func(t *testing.T, _ place, file, _ string) *requirement.Set {
			return listed(t, "evil @ "+file)
		},
		"a requirement with another ending after its path": func(t *testing.T, _ place, file, _ string) *requirement.Set {
			return listed(t, "evil @ "+file+"?as=evil.whl#egg=evil.whl")
		},
		"a constraint": func(t *testing.T, _ place, file, _ string) *requirement.Set {
			set, err := requirement.File("r.txt", func(name string) ([]byte, error) {
				return []byte(map[string]string{"r.txt": "evil\n-c c.txt\n", "c.txt": "evil @ " + file + "\n"}[name]), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return set
		},
		"a lock's archive": func(t *testing.T, _ place, file, sum string) *requirement.Set {
			set, err := requirement.Lock("pylock.toml", func(string) ([]byte, error) {
				return []byte("lock-version = '1.0'\ncreated-by = 'x'\n[[packages]]\nname = 'evil'\nversion = '1.0'\n" +
					"archive = { url = '" + file + "', hashes = { sha256 = '" + sum + "' } }\n"), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return set
		},
		"a wheel's dependency": func(t *testing.T, p place, file, _ string) *requirement.Set {
			wheeltest.Wheel{Name: "innocent", Version: "1.0", Requires: []string{"evil @ " + file}}.Write(t, p.wheels)
			return listed(t, "innocent")
		},
		"a wheel's dependency, a directory": func(t *testing.T, p place, _, _ string) *requirement.Set {
			wheeltest.Wheel{Name: "innocent", Version: "1.0", Requires: []string{"evil @ file://" + filepath.Join(p.wheels, "evil")}}.Write(t, p.wheels)
			return listed(t, "innocent")
		},
	}
	for name, required := range tests {
		t.Run(name, func(t *testing.T) {
			tools(t, func(t *testing.T, i install.Installer) { runsNothing(t, i, required) })
		})
	}
}

func runsNothing(t *testing.T, i install.Installer, required func(t *testing.T, p place, file, sum string) *requirement.Set) {
	t.Helper()
	p := newPlace(t)
	marker := filepath.Join(p.work(), "ran")
	code := "open(" + quoted(marker) + ", 'w').close()"
	sdist := wheeltest.Sdist{Name: "evil", Version: "1.0", Code: code}
	sum := sdist.Write(t, p.wheels)
	if err := os.Mkdir(filepath.Join(p.wheels, "evil"), 0o755); err != nil {
		t.Fatal(err)
	}
	setup := code + "\nfrom setuptools import setup\nsetup(name='evil', version='1.0')\n"
	if err := os.WriteFile(filepath.Join(p.wheels, "evil/setup.py"), []byte(setup), 0o644); err != nil {
		t.Fatal(err)
	}
	index := wheeltest.Index(t, p.wheels).URL
	r := p.request(t)
	r.Indexes = requirement.Indexes{URL: index + "/simple"}
	r.Requirements = required(t, p, index+"/files/"+sdist.File(), sum)
	_, err := i.Install(t.Context(), r)
	var e *install.Error
	if !errors.As(err, &e) || e.Temporary() || !strings.Contains(err.Error(), "evil") || !strings.Contains(err.Error(), "allow_sdists") {
		t.Errorf("the error is %v\n%s", err, lines(err))
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("its code ran")
	}
}

func listed(t *testing.T, requirements ...string) *requirement.Set {
	t.Helper()
	set, err := requirement.List(requirements)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestAPipWithOtherNamesForItsPartsBuildsNothing(t *testing.T) {
	for name, build := range map[string]string{
		"subprocess":    "subprocess.run([sys.executable, '-c', CODE])",
		"a list of one": "subprocess.call([PROGRAM])",
		"a shell":       "subprocess.Popen(sys.executable + ' -c \"' + CODE + '\"', shell=True).wait()",
		"os.system":     "os.system(sys.executable + ' -c \"' + CODE + '\"')",
		"os.spawnv":     "os.spawnv(os.P_WAIT, sys.executable, [sys.executable, '-c', CODE])",
		"os.execv":      "os.execv(sys.executable, [sys.executable, '-c', CODE])",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			marker := filepath.Join(p.work(), "ran")
			program := filepath.Join(p.wheels, "ld-musl-not")
			if err := os.WriteFile(program, []byte("#!/bin/sh\ntouch "+marker+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(p.wheels, "pip"), 0o755); err != nil {
				t.Fatal(err)
			}
			code := "import os, subprocess, sys\nPROGRAM = " + quoted(program) + "\nCODE = \"open(" + quoted(marker) + ", 'w')\"\n" + build + "\n"
			for file, content := range map[string]string{"__init__.py": "", "__main__.py": code} {
				if err := os.WriteFile(filepath.Join(p.wheels, "pip", file), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			r := p.request(t, "any")
			r.Python.Pip = []string{filepath.Join(p.wheels, "pip")}
			_, err := pip(t).Install(t.Context(), r)
			var e *install.Error
			if !errors.As(err, &e) || e.Temporary() || !strings.Contains(err.Error(), "building packages from source is disabled") {
				t.Errorf("the error is %v\n%s", err, lines(err))
			}
			if _, err := os.Stat(marker); err == nil {
				t.Error("its code ran")
			}
		})
	}
}
