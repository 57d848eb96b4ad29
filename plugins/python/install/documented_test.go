// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/requirement"
)

var option = regexp.MustCompile(`(?:^| )(--[a-z-]+|-[a-z])\b`)

// areDocumented checks that a tool's help has all options of its arguments, and that these are not few.
func areDocumented(t *testing.T, argv, help string, least int) {
	t.Helper()
	documented := map[string]bool{}
	for _, m := range option.FindAllStringSubmatch(help, -1) {
		documented[m[1]] = true
	}
	given := option.FindAllStringSubmatch(argv, -1)
	must.GreaterEq(t, least, len(given), must.Sprint(argv))
	for _, m := range given {
		must.True(t, documented[m[1]], must.Sprintf("%s is not documented", m[1]))
	}
}

func TestInstall_GivesUVOptionsThatItDocuments(t *testing.T) {
	real := uv(t)
	p := newPlace(t)
	wrapper := filepath.Join(p.wheels, "uv")
	script := fmt.Sprintf("#!/bin/sh\necho \"$*\" >> given\nexec %s \"$@\"\n", real.Path)
	must.NoError(t, os.WriteFile(wrapper, []byte(script), 0o755))
	var given []string
	gather := func() {
		text, err := os.ReadFile(filepath.Join(p.work(), "given"))
		must.NoError(t, err)
		given = append(given, strings.Split(strings.TrimSpace(string(text)), "\n")...)
	}
	i := install.Installer{Path: wrapper, Version: real.Version}
	sum := words.Write(t, p.wheels)
	r := p.request(t)
	r.Requirements = &requirement.Set{
		Lines: []string{"greeting-words==1.0 --hash=sha256:" + sum}, Constraints: []string{"greeting-words==1.0"},
		Hashed: true, Complete: true,
	}
	installs(t, i, r)
	gather()
	r = p.request(t)
	r.Requirements = &requirement.Set{UVLock: &requirement.UVLock{
		Project: []byte("[project]\nname = 'app'\nversion = '1'\nrequires-python = '>=3.8'\n"),
		Lock: []byte("version = 1\nrequires-python = '>=3.8'\n" +
			"[[package]]\nname = 'app'\nversion = '1'\nsource = {virtual = '.'}\n"),
	}}
	must.NoError(t, os.RemoveAll(p.work()))
	p.mkdirs(t)
	_, err := i.Export(t.Context(), r)
	must.NoError(t, err)
	gather()
	must.Len(t, 3, given)
	for _, argv := range given {
		command, _, _ := strings.Cut(argv, " -")
		help, err := exec.Command(real.Path, append([]string{"help", "--no-pager"}, strings.Fields(command)...)...).Output()
		must.NoError(t, err)
		areDocumented(t, argv, string(help), 5)
	}
}
