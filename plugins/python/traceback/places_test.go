// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package traceback

import (
	"strings"
	"testing"
)

func TestLast_NamesThePlace(t *testing.T) {
	const env = "/var/cache/outrider/python/envs/4f1c09aa.0/lib/python3.11/site-packages/"
	const task = "/var/lib/nomad/alloc/4f1c/web"
	for name, test := range map[string]struct {
		files []string // outermost first
		want  string
	}{
		"a package of the environment": {[]string{"<frozen runpy>", env + "gunicorn/__main__.py", env + "gunicorn/util.py"},
			"gunicorn/util.py"},
		"of the distribution": {[]string{"/usr/lib/python3/dist-packages/gunicorn/util.py"}, "gunicorn/util.py"},
		"Python's last": {[]string{env + "gunicorn/util.py", "/usr/lib/python3.11/importlib/__init__.py",
			"<frozen importlib._bootstrap>"}, "gunicorn/util.py"},
		"Python's alone":         {[]string{"<frozen runpy>", "/usr/lib/python3.11/http/server.py"}, "http/server.py"},
		"a package in a package": {[]string{env + "pip/_vendor/x/site-packages/rich/util.py"}, "rich/util.py"},
		"a module by itself":     {[]string{env + "six.py"}, "six.py"},
		"the task's":             {[]string{task + "/local/app.py", env + "six.py"}, "app.py"},
		"the task's package":     {[]string{task + "/local/shop/cart/util.py"}, "shop/cart/util.py"},
		"beside local":           {[]string{task + "/release/app.py"}, "release/app.py"},
		"elsewhere":              {[]string{"/srv/shop/util.py"}, "util.py"},
		"another task's":         {[]string{task + "2/local/app.py"}, "app.py"},
		"above":                  {[]string{"../../util.py"}, "util.py"},
		"very deep":              {[]string{task + "/local/" + strings.Repeat("deep/", 30) + "util.py"}, "util.py"},
	} {
		stderr := "Traceback (most recent call last):\n"
		for _, file := range test.files {
			stderr += "  File \"" + file + "\", line 25, in f\n"
		}
		f, ok := Last([]byte(stderr+"ValueError: x\n"), 1, task+"/local", task)
		if !ok || f.File != test.want || f.Line != 25 {
			t.Errorf("%s: %s:%d, %t, want %s", name, f.File, f.Line, ok, test.want)
		}
	}
}
