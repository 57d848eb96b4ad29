package install_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

var option = regexp.MustCompile(`(?:^| )(--[a-z-]+|-[a-z])\b`)

// Whatever uv this is, its help has all options that it is given.
func TestUVIsGivenOnlyOptionsThatItDocuments(t *testing.T) {
	real := uv(t)
	p := newPlace(t)
	hello(t, p.wheels)
	wrapper := filepath.Join(p.wheels, "uv")
	if err := os.WriteFile(wrapper, []byte(fmt.Sprintf("#!/bin/sh\necho \"given: $*\"\nexec %s \"$@\"\n", real.UV)), 0o755); err != nil {
		t.Fatal(err)
	}
	var given []string
	hear := func(line string) {
		if argv, ok := strings.CutPrefix(line, "given: "); ok {
			given = append(given, argv)
		}
	}
	i := install.Installer{Name: "uv", Version: real.Version, UV: wrapper}
	sum := wheeltest.Wheel{Name: "greeting-words", Version: "1.0"}.Write(t, p.wheels)
	r := p.request(t)
	r.Requirements = &requirement.Set{Lines: []string{"greeting-words==1.0 --hash=sha256:" + sum}, Constraints: []string{"greeting-words==1.0"}, Hashed: true, Complete: true}
	r.Progress = hear
	must(t, i, r)
	r = p.request(t)
	r.Requirements = &requirement.Set{UVLock: &requirement.UVLock{
		Project: []byte("[project]\nname = 'app'\nversion = '1'\nrequires-python = '>=3.8'\n"),
		Lock:    []byte("version = 1\nrequires-python = '>=3.8'\n[[package]]\nname = 'app'\nversion = '1'\nsource = {virtual = '.'}\n"),
	}}
	r.Progress = hear
	if _, err := i.Export(t.Context(), r); err != nil {
		t.Fatalf("%v\n%s", err, lines(err))
	}
	if len(given) != 3 {
		t.Fatalf("it ran with %q", given)
	}
	for _, argv := range given {
		command, _, _ := strings.Cut(argv, " -")
		help, err := exec.Command(real.UV, append([]string{"help", "--no-pager"}, strings.Fields(command)...)...).Output()
		if err != nil {
			t.Fatalf("uv help %s: %v", command, err)
		}
		documented := map[string]bool{}
		for _, m := range option.FindAllStringSubmatch(string(help), -1) {
			documented[m[1]] = true
		}
		for _, m := range option.FindAllStringSubmatch(argv, -1) {
			if !documented[m[1]] {
				t.Errorf("uv %s does not document %s", command, m[1])
			}
		}
	}
}

// The same of pip: what its help has not, it was not told of.
func TestPipIsGivenOnlyOptionsThatItDocuments(t *testing.T) {
	p := newPlace(t)
	fake := filepath.Join(p.wheels, "pip")
	if err := os.Mkdir(fake, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"__init__.py": "", "__main__.py": "import sys\nprint('given:', *sys.argv[1:])\n"} {
		if err := os.WriteFile(filepath.Join(fake, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := p.request(t)
	r.Requirements = &requirement.Set{Lines: []string{"greeting-words==1.0"}, Constraints: []string{"greeting-words<2"}, Hashed: true, Complete: true}
	r.Python.Pip = []string{fake}
	var given string
	r.Progress = func(line string) { given += line }
	must(t, pip(t), r)
	python := system(t)
	argv := append(append([]string{}, python.Pip...), "help", "install")
	help, err := exec.Command(python.Path, append([]string{"-I"}, argv...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, m := range option.FindAllStringSubmatch(string(help), -1) {
		documented[m[1]] = true
	}
	wanted := option.FindAllStringSubmatch(given, -1)
	if len(wanted) < 10 {
		t.Fatalf("it ran with %q", given)
	}
	for _, m := range wanted {
		if !documented[m[1]] {
			t.Errorf("pip does not document %s", m[1])
		}
	}
}
