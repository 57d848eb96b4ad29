// Copyright (c) The Outrider Authors
// SPDX-License-Identifier: MPL-2.0

package environment

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"

	"github.com/outrider-dev/outrider/internal/core/testsupport"
)

// downloading is a build that finds some downloads, and adds one.
func downloading(t *testing.T, found *[]string, name string) Spec {
	return Spec{Key: name, Downloads: true, Build: func(ctx context.Context, as *Builder, dir, scratch,
		downloads string) error {
		entries, err := os.ReadDir(downloads)
		if err != nil {
			return err
		}
		*found = nil
		for _, e := range entries {
			*found = append(*found, e.Name())
			if info, err := e.Info(); err != nil || as != nil && owner(info) != as.UID {
				t.Errorf("%s is not the builder's: %v, %v", e.Name(), info, err)
			}
		}
		sub := filepath.Join(downloads, name, "of", "it")
		if err := os.MkdirAll(sub, 0o777); err != nil {
			return err
		}
		if err := errors.Join(os.WriteFile(sub+"/wheel", []byte("content"), 0o666), os.Symlink("wheel",
			sub+"/link")); err != nil {
			return err
		}
		if as != nil {
			if err := chownTree(filepath.Join(downloads, name), as); err != nil {
				return err
			}
		}
		return building(3)(ctx, as, dir, scratch, downloads)
	}}
}

func TestDownloads_ServeTheNextBuildIfTheirsEnded(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"it ended":      nil,
		"it was killed": func(dir string) error { return os.Chmod(dir, usedMode) },
		"it was before the machine's start": func(dir string) error {
			return os.Rename(dir, filepath.Dir(dir)+"/0.3d1b8f2e-0000-4000-8000-000000000000")
		},
		"it was removed": func(dir string) error { (&store{}).removeTree(dir); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := testCache(t)
			var found []string
			mustGet(t, c, downloading(t, &found, "first")).Release()
			dir := filepath.Join(c.cfg.Dir, "downloads", "0"+thisBoot())
			err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if err != nil {
					return err
				}
				info, err := d.Info()
				if err != nil || int(owner(info)) != os.Geteuid() || d.Type() != os.ModeSymlink && info.Mode()&0o022 != 0 {
					t.Errorf("between builds %s is %v of user %d, %v", path, info.Mode(), owner(info), err)
				}
				return nil
			})
			must.NoError(t, err)
			want := "first"
			if change != nil {
				want = ""
				must.NoError(t, change(dir))
			}
			mustGet(t, c, downloading(t, &found, "second")).Release()
			test.Eq(t, want, strings.Join(found, " "), test.Sprintf("the next build found %q", found))
			mustTidy(t, c)
			mustBeTidy(t, c, 2)
			left, err := os.ReadDir(filepath.Dir(dir))
			must.NoError(t, err)
			test.SliceLen(t, 1, left)
		})
	}
}

func TestDownloads_AreNotSharedByConcurrentBuilds(t *testing.T) {
	c := testCache(t)
	var inner, outer []string
	s := downloading(t, &outer, "outer")
	build := s.Build
	s.Build = func(ctx context.Context, as *Builder, dir, scratch, downloads string) error {
		e, err := c.Get(ctx, downloading(t, &inner, "inner"))
		e.Release()
		if entries, err := os.ReadDir(downloads); err != nil || len(entries) > 0 {
			t.Errorf("from the other came %v, %v", entries, err)
		}
		return errors.Join(err, build(ctx, as, dir, scratch, downloads))
	}
	mustGet(t, c, s).Release()
	test.False(t, len(inner)+len(outer) > 0, test.Sprintf("found %q and %q", inner, outer))
}

func TestBuild_FailsWhileTheBuilderHasAProcess(t *testing.T) {
	testsupport.NeedRoot(t) // without root there is no other user who builds
	c := testCache(t)
	take := c.cfg.Builders
	still := errors.New("a process does not end")
	released := 0
	c.cfg.Builders = func(ctx context.Context, waiting func()) (*Builder, error) {
		b, err := take(ctx, waiting)
		b.Clear, b.Release = func() error { return still }, func() { released++ }
		return b, err
	}
	var found []string
	_, err := c.Get(t.Context(), downloading(t, &found, "first"))
	must.ErrorIs(t, err, still)
	test.Eq(t, 1, released)
	mustBeTidy(t, c, 0)
	c.cfg.Builders = take
	mustGet(t, c, downloading(t, &found, "first")).Release()
	test.SliceEmpty(t, found, test.Sprint("its downloads serve another build"))
}

func TestDownloads_DropLinkedFilesOfOthers(t *testing.T) {
	testsupport.NeedRoot(t) // only root can give files away
	c := testCache(t)
	secret := filepath.Join(testDir(t), "secret")
	must.NoError(t, os.WriteFile(secret, []byte("secret"), 0o644))
	var found []string
	s := downloading(t, &found, "first")
	build := s.Build
	s.Build = func(ctx context.Context, as *Builder, dir, scratch, downloads string) error {
		return errors.Join(build(ctx, as, dir, scratch, downloads), os.Link(secret, downloads+"/linked"))
	}
	mustGet(t, c, s).Release()
	if info, err := os.Stat(secret); err != nil || info.Mode() != 0o644 || owner(info) != 0 {
		t.Errorf("it is %v of user %d, %v", info.Mode(), owner(info), err)
	}
	mustGet(t, c, downloading(t, &found, "second")).Release()
	test.SliceEmpty(t, found, test.Sprint("the next build found"))
}
