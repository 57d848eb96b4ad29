// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package install_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/plugins/python/install"
	"github.com/outrider-dev/outrider/plugins/python/wheeltest"
)

// BenchmarkColdBuild makes an environment of five wheels with a hundred modules each, in
// turn as this package does it and by hand: virtual environment, packages, bytecode, with
// the same tool. The ratio is ours to by-hand; each has its own new directories.
func BenchmarkColdBuild(b *testing.B) {
	for _, i := range []func(testing.TB) install.Installer{pip, uv} {
		i := i(b)
		b.Run(i.Name, func(b *testing.B) {
			p := newPlace(b)
			var lines []string
			for n := range 5 {
				w := wheeltest.Wheel{Name: fmt.Sprintf("package%d", n), Version: "1.0", Files: map[string]string{}}
				for m := range 100 {
					text := fmt.Sprintf("def f(x):\n    %q\n    return [y * %d for y in range(x)]\n", noise(40), m)
					w.Files[fmt.Sprintf("%s/m%d.py", w.Name+"_", m)] = text
				}
				w.Write(b, p.wheels)
				lines = append(lines, w.Name)
			}
			var ours, hand time.Duration
			for b.Loop() {
				fresh := newPlace(b)
				r := fresh.request(b, lines...)
				r.Sources.FindLinks = []string{p.wheels}
				r.Progress = nil
				begun := time.Now()
				_, err := i.Install(b.Context(), r)
				must.NoError(b, err)
				ours += time.Since(begun)

				fresh = newPlace(b)
				begun = time.Now()
				byHand(b, i, fresh, p.wheels, lines)
				hand += time.Since(begun)
			}
			b.ReportMetric(ours.Seconds()/hand.Seconds(), "ours/by-hand")
			b.ReportMetric(float64(ours.Milliseconds())/float64(b.N), "ours-ms")
			b.ReportMetric(float64(hand.Milliseconds())/float64(b.N), "by-hand-ms")
		})
	}
}

func byHand(b *testing.B, i install.Installer, p place, wheels string, packages []string) {
	python := system(b)
	env := filepath.Join(p.dir, "new")
	if i.Name == "uv" {
		run(b, p, i.UV, "venv", "--python", python.Path, env)
		run(
			b,
			p,
			append(
				[]string{
					i.UV,
					"pip",
					"install",
					"--python",
					env + "/bin/python",
					"--link-mode",
					"copy",
					"--no-index",
					"--find-links",
					wheels,
				},
				packages...)...)
	} else {
		run(b, p, python.Path, "-m", "venv", "--without-pip", env)
		pip := append([]string{python.Path}, python.Pip...)
		run(b, p, append(append(pip, "--python", env+"/bin/python", "install",
			"--no-compile", "--no-index", "--find-links", wheels), packages...)...)
	}
	run(b, p, python.Path, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", env+"/lib")
}

func run(b *testing.B, p place, argv ...string) {
	b.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = []string{
		"PATH=/usr/bin:/bin",
		"HOME=" + p.work(),
		"PIP_DISABLE_PIP_VERSION_CHECK=1",
		"XDG_CACHE_HOME=" + p.downloads(),
	}
	cmd.Dir = p.work()
	out, err := cmd.CombinedOutput()
	must.NoError(b, err, must.Sprintf("%q: %v\n%s", argv, err, out))
}
